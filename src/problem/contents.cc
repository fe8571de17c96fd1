// Checks the numbers inside cu_seqlens, seqused_q, seqused_k, page_table, slices, parts and the
// descale tensors.
#include "math/integer.h"
#include "math/scalar.h"
#include "problem/sequence.h"
#include "problem/tensor_checks.h"
#include "problem/validate.h"

namespace tilewise::problem {
namespace {

Status check_ascending(const char* name, const IndexView& list, std::int64_t rows,
                       std::int64_t max_length) {
  if (!list.present()) return TILEWISE_OK;
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < list.count; ++i) {
    const std::int64_t value = list.at(i);
    if (value < previous || value > rows) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s[%lld]: is %lld, must be between %lld (the previous one) and T = %lld", name,
                  printable(i), printable(value), printable(previous), printable(rows));
    }
    if (i > 0 && value - previous > max_length) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s[%lld]: a sequence of length %lld, longer than max_seqlen = %lld", name,
                  printable(i), printable(value - previous), printable(max_length));
    }
    previous = value;
  }
  return TILEWISE_OK;
}

Status check_used(const char* name, const IndexView& list, std::int64_t most) {
  if (!list.present()) return TILEWISE_OK;
  for (std::int64_t b = 0; b < list.count; ++b) {
    const std::int64_t used = list.at(b);
    if (used < 0 || used > most) {
      return fail(TILEWISE_INVALID_ARGUMENT, "%s[%lld]: is %lld, must be between 0 and %lld", name,
                  printable(b), printable(used), printable(most));
    }
  }
  return TILEWISE_OK;
}

Status check_slices(const Problem& problem) {
  for (std::int64_t s = 0; s < problem.slices.count; ++s) {
    const std::int64_t limits[2] = {problem.q_rows, problem.k_rows};
    static constexpr const char* kNames[2][2] = {{"q0", "q1"}, {"k0", "k1"}};
    for (std::int64_t axis = 0; axis < 2; ++axis) {
      const std::int64_t begin = problem.slices.at(s, 2 * axis);
      const std::int64_t end = problem.slices.at(s, 2 * axis + 1);
      if (begin < 0 || end < begin || end > limits[axis]) {
        return fail(TILEWISE_INVALID_ARGUMENT,
                    "slices[%lld]: %s..%s is %lld..%lld, must lie within 0..%lld", printable(s),
                    kNames[axis][0], kNames[axis][1], printable(begin), printable(end),
                    printable(limits[axis]));
      }
    }
    const std::int64_t kind = problem.slices.at(s, 4);
    if (kind < math::kSliceFull || kind > math::kSliceBand) {
      return fail(TILEWISE_INVALID_ARGUMENT, "slices[%lld]: kind is %lld, must be 0 to 3",
                  printable(s), printable(kind));
    }
    const std::int64_t head = problem.slices.columns == 6 ? problem.slices.at(s, 5) : -1;
    if (head < -1 || head >= problem.heads) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "slices[%lld]: head is %lld, must be -1 (all) or below H = %lld", printable(s),
                  printable(head), printable(problem.heads));
    }
  }
  return TILEWISE_OK;
}

Status check_parts(const Problem& problem) {
  static constexpr const char* kNames[] = {"number", "row", "key", "d"};
  for (std::int64_t b = 0; problem.parts.present() && b < problem.parts.count; ++b) {
    for (std::int64_t c = 0; c < problem.parts.columns; ++c) {
      const std::int64_t value = problem.parts.at(b, c);
      const std::int64_t least = c == 3 ? -kMostOfWhole : 0;
      if (value < least || value > kMostOfWhole) {
        return fail(TILEWISE_INVALID_ARGUMENT,
                    "parts[%lld]: %s is %lld, must be between %lld and %lld", printable(b),
                    kNames[c], printable(value), printable(least), printable(kMostOfWhole));
      }
    }
  }
  return TILEWISE_OK;
}

// Entries after the end of a sequence may be anything.
Status check_page_table(const Problem& problem) {
  const PageTable& table = problem.page_table;
  for (std::int64_t b = 0; table.present() && b < problem.batch; ++b) {
    const std::int64_t keys =
        problem.seqused_k.present() ? problem.seqused_k.at(b) : problem.k_rows;
    for (std::int64_t p = 0; p < math::ceil_div(keys, table.page_size); ++p) {
      const std::int32_t page = table.data[b * table.batch + p * table.column];
      if (page >= 0 && page < table.pages) continue;
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "page_table[%lld][%lld]: is %d, must be between 0 and %lld, the last page of k",
                  printable(b), printable(p), page, printable(table.pages - 1));
    }
  }
  return TILEWISE_OK;
}

Status check_descale(const char* name, const View& scales, const Problem& problem,
                     std::int64_t rows) {
  if (!scales.present()) return TILEWISE_OK;
  const std::int64_t batches = scales.batch != 0 ? problem.batch : 1;
  const std::int64_t heads = scales.head != 0 ? problem.kv_heads : 1;
  const std::int64_t blocks = scales.row != 0 ? math::ceil_div(rows, kDescaleRows) : 1;
  const bool empty = problem.batch == 0 || problem.kv_heads == 0 || rows == 0;
  for (std::int64_t b = 0; !empty && b < batches; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        const float scale = static_cast<const float*>(scales.data)[scales.offset(b, h, block)];
        if (scale > 0 && math::is_finite(scale)) continue;
        return fail(TILEWISE_INVALID_ARGUMENT,
                    "%s[%lld][%lld][%lld]: is %g, must be positive and finite", name, printable(b),
                    printable(h), printable(block), static_cast<double>(scale));
      }
    }
  }
  return TILEWISE_OK;
}

}  // namespace

Status check_contents(const Problem& problem) {
  TILEWISE_RETURN_IF_ERROR(
      check_ascending("cu_seqlens_q", problem.cu_seqlens_q, problem.q_rows, problem.max_q));
  TILEWISE_RETURN_IF_ERROR(
      check_ascending("cu_seqlens_k", problem.cu_seqlens_k, problem.k_rows, problem.max_k));
  TILEWISE_RETURN_IF_ERROR(check_used("seqused_q", problem.seqused_q, problem.max_q));
  TILEWISE_RETURN_IF_ERROR(check_used("seqused_k", problem.seqused_k, problem.max_k));
  TILEWISE_RETURN_IF_ERROR(check_parts(problem));
  TILEWISE_RETURN_IF_ERROR(check_page_table(problem));
  TILEWISE_RETURN_IF_ERROR(check_descale("q_descale", problem.q_descale, problem, problem.q_rows));
  TILEWISE_RETURN_IF_ERROR(check_descale("k_descale", problem.k_descale, problem, problem.k_rows));
  TILEWISE_RETURN_IF_ERROR(check_descale("v_descale", problem.v_descale, problem, problem.k_rows));
  return check_slices(problem);
}

}  // namespace tilewise::problem
