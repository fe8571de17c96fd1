// Checks the numbers inside cu_seqlens, seqused_q, seqused_k, slices and parts.
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

}  // namespace

Status check_contents(const Problem& problem) {
  TILEWISE_RETURN_IF_ERROR(
      check_ascending("cu_seqlens_q", problem.cu_seqlens_q, problem.q_rows, problem.max_q));
  TILEWISE_RETURN_IF_ERROR(
      check_ascending("cu_seqlens_k", problem.cu_seqlens_k, problem.k_rows, problem.max_k));
  TILEWISE_RETURN_IF_ERROR(check_used("seqused_q", problem.seqused_q, problem.max_q));
  TILEWISE_RETURN_IF_ERROR(check_used("seqused_k", problem.seqused_k, problem.max_k));
  TILEWISE_RETURN_IF_ERROR(check_parts(problem));
  return check_slices(problem);
}

}  // namespace tilewise::problem
