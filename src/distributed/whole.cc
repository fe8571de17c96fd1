#include "distributed/whole.h"

#include <algorithm>
#include <utility>

#include "cuda/host/runtime.h"
#include "problem/fp8.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed {
namespace {

using problem::fail;
using problem::Problem;
using problem::Sequence;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 48;  // sums of positions fit int64

// Gives a tensor another number of rows, and no memory. An absent tensor, or one of an impossible
// rank, which is refused later, is left alone. So is the innermost stride of row tensors.
void set_rows(tilewise_tensor& tensor, int dimension, std::int64_t rows) {
  if (tensor.rank < 1 || tensor.rank > TILEWISE_MAX_RANK || tensor.rank <= dimension) return;
  const int last = tensor.rank - 1;
  const std::int64_t innermost = tensor.strides[last];
  tensor.shape[dimension] = rows;
  tensor = tilewise_contiguous(nullptr, tensor.dtype, tensor.rank, tensor.shape);
  if (dimension != last) tensor.strides[last] = innermost;  // is checked
}

tilewise_problem whole_request(const tilewise_problem& request, Lengths lengths) {
  static constexpr tilewise_tensor tilewise_problem::*kQueries[] = {
      &tilewise_problem::q, &tilewise_problem::out, &tilewise_problem::dout, &tilewise_problem::dq};
  static constexpr tilewise_tensor tilewise_problem::*kKeys[] = {
      &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dk, &tilewise_problem::dv};
  tilewise_problem whole = request;
  for (const auto member : kQueries)
    set_rows(whole.*member, row_dimension(whole.*member, whole.layout), lengths.q);
  for (const auto member : kKeys)
    set_rows(whole.*member, row_dimension(whole.*member, whole.layout), lengths.k);
  for (const auto member : {&tilewise_problem::lse, &tilewise_problem::dlse})
    set_rows(whole.*member, (whole.*member).rank - 1, lengths.q);
  // The rows of bias, mask and dbias are checked with those of the rank.
  whole.bias.rank = whole.mask.rank = whole.dbias.rank = 0;
  return whole;
}

Status check_length(const char* name, std::int64_t length) {
  if (length >= 0 && length <= kMostTokens) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %lld, must be 0 to 2^48, the length of the whole",
              name, problem::printable(length));
}

Status check_supported(const tilewise_problem& request) {
  if (problem::present(request.slices)) {
    return fail(TILEWISE_UNSUPPORTED,
                "slices: not supported by the schedules of a ring; a token plan takes them");
  }
  if (problem::present(request.parts) || request.accumulate != 0) {
    return fail(TILEWISE_UNSUPPORTED, "%s: not supported by distributed attention, which uses it",
                request.accumulate != 0 ? "accumulate" : "parts");
  }
  if (problem::present(request.page_table) || problem::present(request.phi)) {
    return fail(TILEWISE_UNSUPPORTED, "%s: not supported by distributed attention",
                problem::present(request.page_table) ? "page_table" : "phi");
  }
  TILEWISE_RETURN_IF_ERROR(refuse_score_function(request));
  TILEWISE_RETURN_IF_ERROR(problem::refuse_fp8(request, "distributed attention"));
  return check_devices(request);
}

// Copies a list of a device to host memory, as int64.
Status copy_list(const char* name, tilewise_tensor& list, Whole& whole) {
  const bool wide = list.dtype == TILEWISE_INT64;
  if (list.rank != 1 || list.shape[0] < 0 || !(wide || list.dtype == TILEWISE_INT32))
    return TILEWISE_OK;  // is refused later
  const std::int64_t count = list.shape[0];
  const std::int64_t stride = count > 1 ? list.strides[0] : 1;
  if (list.data == nullptr && count > 0)
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is NULL", name);
  if (stride < 1 || stride > kMostTokens || count > kMostTokens) {
    return fail(TILEWISE_UNSUPPORTED, "%s: has the stride %lld, must be positive on a device", name,
                problem::printable(stride));
  }
  std::vector<char> copy(static_cast<std::size_t>(count * stride * (wide ? 8 : 4)));
  const std::int64_t bytes = count == 0 ? 0 : ((count - 1) * stride + 1) * (wide ? 8 : 4);
  TILEWISE_RETURN_IF_ERROR(cuda::copy(list.device_index, copy.data(), list.data, bytes, nullptr));
  std::vector<std::int64_t>& numbers = whole.lists.emplace_back(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const char* const at = copy.data() + i * stride * (wide ? 8 : 4);
    numbers[static_cast<std::size_t>(i)] = wide ? *reinterpret_cast<const std::int64_t*>(at)
                                                : *reinterpret_cast<const std::int32_t*>(at);
  }
  list = tilewise_contiguous(numbers.data(), TILEWISE_INT64, 1, list.shape);
  return TILEWISE_OK;
}

// Gives a request of a device the lists in host memory, and no other data: as if it were on the
// CPU.
Status copy_to_host(tilewise_problem& request, Whole& whole) {
  if (request.q.device != TILEWISE_CUDA) return TILEWISE_OK;
  for (const auto& [name, member] : {std::pair{"cu_seqlens_q", &tilewise_problem::cu_seqlens_q},
                                     std::pair{"cu_seqlens_k", &tilewise_problem::cu_seqlens_k},
                                     std::pair{"seqused_q", &tilewise_problem::seqused_q},
                                     std::pair{"seqused_k", &tilewise_problem::seqused_k}}) {
    if (problem::present(request.*member))
      TILEWISE_RETURN_IF_ERROR(copy_list(name, request.*member, whole));
  }
  for (const problem::NamedTensor& named : problem::kTensors) {
    tilewise_tensor& tensor = request.*named.member;
    tensor.device = TILEWISE_CPU;
    tensor.device_index = 0;
  }
  return TILEWISE_OK;
}

// Floor and ceiling of a / b for b > 0 and any a.
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

// A run of the sequences that can have tokens in two ranges.
struct SequenceSpan {
  std::size_t begin;
  std::size_t end;
};
SequenceSpan sequences_in(const Whole& whole, const TokenRange& queries, const TokenRange& keys) {
  const auto& all = whole.sequences;
  if (whole.uniform) return {0, std::min<std::size_t>(all.size(), 1)};
  const TokenRange* range = nullptr;  // that of a packed side, whose sequences ascend
  const bool by_query = whole.problem.q_packed;
  if (by_query || whole.problem.k_packed) range = by_query ? &queries : &keys;
  if (range == nullptr) return {0, all.size()};
  const auto start = [&](const Sequence& s) { return by_query ? s.q_start : s.k_start; };
  const auto end = [&](const Sequence& s) { return start(s) + (by_query ? s.q_len : s.k_len); };
  const auto first = std::partition_point(all.begin(), all.end(), [&](const Sequence& s) {
    return end(s) <= range->begin && start(s) < range->begin;
  });
  const auto last = std::partition_point(first, all.end(),
                                         [&](const Sequence& s) { return start(s) < range->end; });
  return {static_cast<std::size_t>(first - all.begin()),
          static_cast<std::size_t>(last - all.begin())};
}

std::int64_t count_at(const math::Band& band, std::int64_t row) {
  return std::max<std::int64_t>(band.end(row) - band.begin(row), 0);
}

}  // namespace

int row_dimension(const tilewise_tensor& tensor, std::int32_t layout) {
  if (tensor.rank == 3) return 0;
  return layout == TILEWISE_BHSD ? 2 : 1;
}

Status check_devices(const tilewise_problem& request) {
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (problem::present(request.*named.member)) {
      TILEWISE_RETURN_IF_ERROR(problem::check_device(named.name, request.*named.member, request.q));
    }
  }
  return TILEWISE_OK;
}

Status refuse_score_function(const tilewise_problem& request) {
  const tilewise_score_function& function = request.score_function;
  if (function.forward == nullptr && function.backward == nullptr) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "score_function: not supported by distributed attention");
}

Status make_whole(problem::Operation operation, const tilewise_problem& request, Lengths lengths,
                  Whole* whole) {
  TILEWISE_RETURN_IF_ERROR(check_length("q_len", lengths.q));
  TILEWISE_RETURN_IF_ERROR(check_length("k_len", lengths.k));
  TILEWISE_RETURN_IF_ERROR(check_supported(request));
  tilewise_problem on_host = request;
  TILEWISE_RETURN_IF_ERROR(copy_to_host(on_host, *whole));
  const tilewise_problem enlarged = whole_request(on_host, lengths);
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(operation, enlarged, &whole->problem));
  TILEWISE_RETURN_IF_ERROR(problem::check_contents(whole->problem));
  const Problem& problem = whole->problem;
  whole->sequences.resize(static_cast<std::size_t>(problem.batch));
  problem::fill_sequences(problem, whole->sequences.data());
  whole->uniform = !problem.q_packed && !problem.k_packed && !problem.seqused_q.present() &&
                   !problem.seqused_k.present();
  return TILEWISE_OK;
}

SequencePart sequence_part(const Whole& whole, const Sequence& sequence, const TokenRange& queries,
                           const TokenRange& keys) {
  SequencePart part;
  part.q_begin = queries.rows_below(sequence.q_start);
  part.q_end = queries.rows_below(sequence.q_start + sequence.q_len);
  part.k_begin = keys.rows_below(sequence.k_start);
  part.k_end = keys.rows_below(sequence.k_start + sequence.k_len);
  if (part.empty()) return part;
  const std::int64_t stride = queries.stride;
  part.first_row = queries.begin + part.q_begin * stride - sequence.q_start;
  part.first_key = keys.begin + part.k_begin * stride - sequence.k_start;
  const std::int64_t q_rows = part.q_end - part.q_begin;
  const std::int64_t k_rows = part.k_end - part.k_begin;
  part.band = math::full_band(q_rows, k_rows);
  // Row i and key j of the part are visible if
  //   -left <= first_key + j * stride - (first_row + i * stride + d) <= right.
  const std::int64_t offset = part.first_row + sequence.diagonal - part.first_key;
  const std::int64_t most = sequence.q_len + sequence.k_len;  // a wider window sees everything
  if (whole.problem.window_left >= 0) {
    part.band.lower_slope = 1;
    part.band.lower_offset = ceil_of(offset - std::min(whole.problem.window_left, most), stride);
  }
  if (whole.problem.window_right >= 0) {
    part.band.upper_slope = 1;
    part.band.upper_offset =
        floor_div(offset + std::min(whole.problem.window_right, most), stride) + 1;
  }
  return part;
}

math::KeyRange visible_rows(const Whole& whole, const TokenRange& queries, const TokenRange& keys) {
  math::KeyRange all = {0, 0};
  const SequenceSpan span = sequences_in(whole, queries, keys);
  for (std::size_t s = span.begin; s < span.end; ++s) {
    const SequencePart part = sequence_part(whole, whole.sequences[s], queries, keys);
    if (part.empty() || band_area(part.band, 0, part.q_end - part.q_begin) == 0) continue;
    const math::KeyRange seen = math::tile_keys(part.band, 0, part.q_end - part.q_begin);
    const std::int64_t begin = part.k_begin + std::max<std::int64_t>(seen.begin, 0);
    const std::int64_t end = std::min(part.k_begin + seen.end, part.k_end);
    const bool first = all.begin >= all.end;
    all = {first ? begin : std::min(all.begin, begin), first ? end : std::max(all.end, end)};
  }
  return all;
}

std::int64_t visible_pairs(const Whole& whole, const TokenRange& queries, const TokenRange& keys) {
  std::int64_t pairs = 0;
  const SequenceSpan span = sequences_in(whole, queries, keys);
  for (std::size_t s = span.begin; s < span.end; ++s) {
    const SequencePart part = sequence_part(whole, whole.sequences[s], queries, keys);
    if (!part.empty()) pairs += band_area(part.band, 0, part.q_end - part.q_begin);
  }
  return whole.uniform ? pairs * static_cast<std::int64_t>(whole.sequences.size()) : pairs;
}

std::int64_t band_area(const math::Band& band, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t first = std::max(row_begin, band.row_begin);
  const std::int64_t last = std::min(row_end, band.row_end);
  if (first >= last) return 0;
  // The number of visible keys is linear in the row between the rows where an edge meets an end of
  // the keys.
  std::int64_t bends[] = {first,
                          band.key_begin - band.upper_offset,
                          band.key_end - band.upper_offset,
                          band.key_begin - band.lower_offset,
                          band.key_end - band.lower_offset,
                          last};
  for (std::int64_t& bend : bends) bend = math::clamp(bend, first, last);
  std::sort(std::begin(bends), std::end(bends));
  std::int64_t area = 0;
  for (std::size_t b = 0; b + 1 < std::size(bends); ++b) {
    const std::int64_t rows = bends[b + 1] - bends[b];
    if (rows == 0) continue;
    area += rows % 2 == 0 ? rows / 2 * (count_at(band, bends[b]) + count_at(band, bends[b + 1] - 1))
                          : rows * count_at(band, bends[b] + rows / 2);
  }
  return area;
}

Schedule choose_schedule(const Whole& whole, Lengths lengths, std::int32_t size) {
  const TokenRange keys = {0, lengths.k, 1};
  const auto most_pairs = [&](Schedule schedule) {
    std::int64_t most = 0;
    for (std::int32_t rank = 0; rank < size; ++rank) {
      const Shard shard = shard_of(schedule, lengths.q, size, rank);
      std::int64_t pairs = 0;
      for (std::int32_t r = 0; r < shard.count; ++r)
        pairs += visible_pairs(whole, shard.ranges[static_cast<std::size_t>(r)], keys);
      most = std::max(most, pairs);
    }
    return static_cast<double>(most);
  };
  return most_pairs(Schedule::kZigzag) <= 0.95 * most_pairs(Schedule::kContiguous)
             ? Schedule::kZigzag
             : Schedule::kContiguous;
}

}  // namespace tilewise::distributed
