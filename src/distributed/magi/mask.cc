#include "distributed/magi/mask.h"

#include "problem/checked.h"

namespace tilewise::distributed::magi {
namespace {

using problem::fail;
using problem::Status;

long long printable(std::int64_t number) { return number; }

Status check_lengths(std::int64_t q_len, std::int64_t k_len, std::int64_t heads) {
  const struct {
    const char* name;
    std::int64_t value;
  } sizes[] = {{"q_len", q_len}, {"k_len", k_len}, {"heads", heads}};
  for (const auto& size : sizes) {
    if (size.value >= 0) continue;
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %lld, must be at least 0", size.name,
                printable(size.value));
  }
  using problem::Checked;
  const Checked pairs = Checked{q_len} * Checked{k_len} * Checked{math::max(heads, 1)} * Checked{4};
  if (pairs.valid) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT,
              "mask: %lld queries, %lld keys and %lld heads are more than 2^61 pairs",
              printable(q_len), printable(k_len), printable(heads));
}

Status check_slice(const Slice& slice, std::size_t number, const Mask& mask, std::int64_t heads) {
  const struct {
    const char* name;
    std::int64_t begin, end, limit;
  } sides[] = {{"q0..q1", slice.q_begin, slice.q_end, mask.q_len},
               {"k0..k1", slice.k_begin, slice.k_end, mask.k_len}};
  for (const auto& side : sides) {
    if (side.begin >= 0 && side.begin <= side.end && side.end <= side.limit) continue;
    return fail(TILEWISE_INVALID_ARGUMENT, "slices[%zu]: %s is %lld..%lld, must lie within 0..%lld",
                number, side.name, printable(side.begin), printable(side.end),
                printable(side.limit));
  }
  if (slice.kind < math::kSliceFull || slice.kind > math::kSliceBand) {
    return fail(TILEWISE_INVALID_ARGUMENT, "slices[%zu]: kind is %lld, must be 0 to 3", number,
                printable(slice.kind));
  }
  if (slice.head < -1 || slice.head >= heads) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "slices[%zu]: head is %lld, must be -1 (all) or below H = %lld", number,
                printable(slice.head), printable(heads));
  }
  return TILEWISE_OK;
}

void add_band(math::Band band, std::int64_t head, Mask& mask) {
  if (trim(band)) mask.bands.push_back({band, head});
}

}  // namespace

bool trim(math::Band& band) {
  if (!band.lower_slope) band.key_begin = math::max(band.key_begin, band.lower_offset);
  if (!band.upper_slope) band.key_end = math::min(band.key_end, band.upper_offset);
  if (band.lower_slope && band.upper_slope && band.lower_offset >= band.upper_offset) return false;
  if (band.upper_slope) {  // row + upper_offset > key_begin
    band.row_begin = math::max(band.row_begin, band.key_begin - band.upper_offset + 1);
  }
  if (band.lower_slope) {  // row + lower_offset < key_end
    band.row_end = math::min(band.row_end, band.key_end - band.lower_offset);
  }
  if (band.row_begin >= band.row_end || band.key_begin >= band.key_end) return false;
  const Range keys = {band.begin(band.row_begin), band.end(band.row_end - 1)};
  band.key_begin = keys.begin;
  band.key_end = keys.end;
  if (!band.lower_slope) band.lower_offset = band.key_begin;
  if (!band.upper_slope) band.upper_offset = band.key_end;
  return true;
}

math::Band crop(const math::Band& band, const Range& rows, const Range& keys) {
  math::Band part = band;
  part.row_begin = math::max(band.row_begin, rows.begin);
  part.row_end = math::min(band.row_end, rows.end);
  part.key_begin = math::max(band.key_begin, keys.begin);
  part.key_end = math::min(band.key_end, keys.end);
  return part;
}

void append_slices(const MaskBand& entry, std::int64_t q_shift, std::int64_t k_shift,
                   std::vector<Slice>& slices) {
  const math::Band& band = entry.band;
  // From lower_row on, the lower edge moves; up to upper_row, the upper one does. At the row
  // itself, key_begin (key_end) and the edge are the same key, so a single row is not cut off.
  std::int64_t lower_row = band.row_end;
  std::int64_t upper_row = band.row_begin;
  if (band.lower_slope) {
    lower_row = math::max(band.key_begin - band.lower_offset, band.row_begin);
    if (lower_row + 1 >= band.row_end && lower_row > band.row_begin) lower_row = band.row_end;
  }
  if (band.upper_slope) {
    upper_row = math::min(band.key_end - band.upper_offset, band.row_end);
    if (upper_row + 1 >= band.row_end) upper_row = band.row_end;
  }
  const std::int64_t cuts[] = {band.row_begin, math::min(lower_row, upper_row),
                               math::max(lower_row, upper_row), band.row_end};
  for (int part = 0; part < 3; ++part) {
    const std::int64_t first = math::max(cuts[part], band.row_begin);
    const std::int64_t end = math::min(cuts[part + 1], band.row_end);
    if (first >= end) continue;
    const std::int64_t kind = (first < upper_row ? math::kSliceCausal : math::kSliceFull) |
                              (first >= lower_row ? math::kSliceInverseCausal : math::kSliceFull);
    slices.push_back({first + q_shift, end + q_shift, band.begin(first) + k_shift,
                      band.end(end - 1) + k_shift, kind, entry.head});
  }
}

Status mask_of_slices(std::span<const Slice> slices, std::int64_t q_len, std::int64_t k_len,
                      std::int64_t heads, Mask* mask) {
  *mask = {q_len, k_len, 1, {}};
  if (const Status status = check_lengths(q_len, k_len, heads); status != TILEWISE_OK) {
    return status;
  }
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const Slice& slice = slices[s];
    if (const Status status = check_slice(slice, s, *mask, heads); status != TILEWISE_OK) {
      return status;
    }
    if (slice.head >= 0) mask->heads = heads;
    const std::int64_t row[] = {slice.q_begin, slice.q_end, slice.k_begin, slice.k_end, slice.kind};
    add_band(math::slice_band(row, q_len, k_len, k_len), slice.head, *mask);
  }
  return TILEWISE_OK;
}

Status mask_of_documents(std::span<const std::int64_t> cu_seqlens_q,
                         std::span<const std::int64_t> cu_seqlens_k, const WindowOptions& window,
                         Mask* mask) {
  if (cu_seqlens_q.empty() || cu_seqlens_q.size() != cu_seqlens_k.size()) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "cu_seqlens_k: has %zu numbers, must have as many as cu_seqlens_q, %zu, at least 1",
                cu_seqlens_k.size(), cu_seqlens_q.size());
  }
  *mask = {cu_seqlens_q.back(), cu_seqlens_k.back(), 1, {}};
  if (const Status status = check_lengths(mask->q_len, mask->k_len, 1); status != TILEWISE_OK) {
    return status;
  }
  for (std::size_t b = 0; b < cu_seqlens_q.size(); ++b) {
    for (const auto& [name, starts] :
         {std::pair("cu_seqlens_q", cu_seqlens_q), std::pair("cu_seqlens_k", cu_seqlens_k)}) {
      const std::int64_t least = b == 0 ? 0 : starts[b - 1];
      if (starts[b] >= least && (b > 0 || starts[b] == 0)) continue;
      return fail(TILEWISE_INVALID_ARGUMENT, "%s[%zu]: is %lld, must be %s%lld", name, b,
                  printable(starts[b]), b == 0 ? "" : "at least ", printable(least));
    }
    if (b == 0) continue;
    const std::int64_t q_begin = cu_seqlens_q[b - 1];
    const std::int64_t k_begin = cu_seqlens_k[b - 1];
    const std::int64_t q_len = cu_seqlens_q[b] - q_begin;
    const std::int64_t k_len = cu_seqlens_k[b] - k_begin;
    const std::int64_t diagonal = window.top_left ? 0 : k_len - q_len;
    math::Band band = math::window_band(q_len, k_len, diagonal, window.left, window.right);
    band.row_begin += q_begin;
    band.row_end += q_begin;
    band.key_begin += k_begin;
    band.key_end += k_begin;
    band.lower_offset += k_begin - (band.lower_slope ? q_begin : 0);
    band.upper_offset += k_begin - (band.upper_slope ? q_begin : 0);
    add_band(band, -1, *mask);
  }
  return TILEWISE_OK;
}

}  // namespace tilewise::distributed::magi
