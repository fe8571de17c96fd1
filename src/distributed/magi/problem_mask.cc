#include "distributed/magi/problem_mask.h"

#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::distributed::magi {
namespace {

using problem::fail;
using problem::present;

Status check_supported(const tilewise_problem& request) {
  const std::pair<const char*, const tilewise_tensor*> refused[] = {
      {"seqused_q", &request.seqused_q},
      {"seqused_k", &request.seqused_k},
      {"mask", &request.mask},
      {"parts", &request.parts},
      {"page_table", &request.page_table}};
  for (const auto& [name, tensor] : refused) {
    if (present(*tensor))
      return fail(TILEWISE_UNSUPPORTED, "%s: not supported by a token plan", name);
  }
  return TILEWISE_OK;
}

// Reads the mask as that of a whole problem with small heads, so that every rule about it holds.
Status read_whole(const tilewise_problem& request, Lengths lengths, std::int64_t heads,
                  problem::Problem* whole) {
  tilewise_problem masked;
  tilewise_problem_init(&masked);
  masked.slices = request.slices;
  masked.cu_seqlens_q = request.cu_seqlens_q;
  masked.cu_seqlens_k = request.cu_seqlens_k;
  masked.causal = request.causal;
  masked.window_left = request.window_left;
  masked.window_right = request.window_right;
  masked.alignment = request.alignment;
  const bool packed =
      present(request.slices) || present(request.cu_seqlens_q) || present(request.cu_seqlens_k);
  const auto rows = [&](std::int64_t length) {
    const std::int64_t shape[] = {1, length, heads, 1};
    return tilewise_contiguous(nullptr, TILEWISE_FP32, packed ? 3 : 4, packed ? shape + 1 : shape);
  };
  masked.q = masked.out = rows(lengths.q);
  masked.k = masked.v = rows(lengths.k);
  TILEWISE_RETURN_IF_ERROR(problem::make_problem(problem::Operation::kForward, masked, whole));
  return problem::check_contents(*whole);
}

std::vector<Slice> slices_of(const problem::IndexView& list) {
  std::vector<Slice> slices;
  for (std::int64_t s = 0; s < list.count; ++s) {
    slices.push_back({list.at(s, 0), list.at(s, 1), list.at(s, 2), list.at(s, 3), list.at(s, 4),
                      list.columns == 6 ? list.at(s, 5) : -1});
  }
  return slices;
}

// Rows that belong to no document have no LSE but -inf, whatever the sink: slices cannot say that.
Status read_starts(const char* name, const problem::IndexView& list, std::int64_t length,
                   std::vector<std::int64_t>* starts) {
  *starts = {0, length};
  if (!list.present()) return TILEWISE_OK;
  starts->clear();
  for (std::int64_t b = 0; b < list.count; ++b) starts->push_back(list.at(b));
  if (starts->front() == 0 && starts->back() == length) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT,
              "%s: covers the tokens %lld..%lld, must cover 0..%lld in a token plan", name,
              problem::printable(starts->front()), problem::printable(starts->back()),
              problem::printable(length));
}

}  // namespace

Status mask_of_problem(const tilewise_problem& request, Lengths lengths, Mask* mask) {
  TILEWISE_RETURN_IF_ERROR(check_supported(request));
  std::int64_t heads = 1;
  if (present(request.q)) {
    TILEWISE_RETURN_IF_ERROR(problem::check_tensor("q", request.q));
    if (request.q.rank != 3)
      TILEWISE_RETURN_IF_ERROR(problem::check_rank("q", request.q, 4, "(B, S, H, D)"));
    heads = problem::sides_of(request.q, request.layout).heads;
  }
  TILEWISE_RETURN_IF_ERROR(mask_of_slices({}, lengths.q, lengths.k, heads, mask));  // the lengths
  problem::Problem whole;
  TILEWISE_RETURN_IF_ERROR(read_whole(request, lengths, heads, &whole));
  if (whole.slices.present())
    return mask_of_slices(slices_of(whole.slices), lengths.q, lengths.k, heads, mask);
  std::vector<std::int64_t> q_starts;
  std::vector<std::int64_t> k_starts;
  TILEWISE_RETURN_IF_ERROR(read_starts("cu_seqlens_q", whole.cu_seqlens_q, lengths.q, &q_starts));
  TILEWISE_RETURN_IF_ERROR(read_starts("cu_seqlens_k", whole.cu_seqlens_k, lengths.k, &k_starts));
  return mask_of_documents(q_starts, k_starts,
                           {whole.window_left, whole.window_right, whole.top_left}, mask);
}

}  // namespace tilewise::distributed::magi
