#include "distributed/magi/request.h"

#include <algorithm>
#include <initializer_list>

#include "distributed/whole.h"
#include "problem/fp8.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::distributed::magi {
namespace {

using problem::fail;
using problem::present;
using problem::printable;
using problem::Status;

constexpr const char* kInPlan = "whose token plan has the mask";
constexpr const char* kPositions = "whose ranks hold tokens from many places of the whole";

Status check_options(const tilewise_problem& request, std::int64_t ranks) {
  const struct {
    const char* name;
    bool given;
    const char* reason;
  } refused[] = {
      {"slices", present(request.slices), kInPlan},
      {"causal", request.causal != 0, kInPlan},
      {"window_left", request.window_left != -1, kInPlan},
      {"window_right", request.window_right != -1, kInPlan},
      {"cu_seqlens_q", present(request.cu_seqlens_q), kInPlan},
      {"cu_seqlens_k", present(request.cu_seqlens_k), kInPlan},
      {"seqused_q", present(request.seqused_q), kInPlan},
      {"seqused_k", present(request.seqused_k), kInPlan},
      {"mask", present(request.mask), kPositions},
      {"bias", present(request.bias), kPositions},
      {"alibi_slopes", present(request.alibi_slopes), kPositions},
      {"dropout_p", request.dropout_p != 0, kPositions},
      {"parts", present(request.parts), "which uses it"},
      {"accumulate", request.accumulate != 0, "which uses it"},
      {"page_table", present(request.page_table), "whose keys are rows"},
      {"phi", present(request.phi), "which needs the maxima of rows"},
      {"batch_invariant", request.batch_invariant != 0 && ranks > 1,
       "whose sums depend on the plan"},
  };
  for (const auto& option : refused) {
    if (option.given) {
      return fail(TILEWISE_UNSUPPORTED, "%s: not supported by the balanced schedule, %s",
                  option.name, option.reason);
    }
  }
  return TILEWISE_OK;
}

bool is_one_of(tilewise_tensor tilewise_problem::*member,
               std::initializer_list<tilewise_tensor tilewise_problem::*> members) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

// Removes the first dimension of a tensor, whose size is 1, and moves heads after rows.
Status remove_batch(const char* name, bool heads_first, tilewise_tensor& tensor) {
  TILEWISE_RETURN_IF_ERROR(problem::check_tensor(name, tensor));
  if (tensor.shape[0] != 1) {
    return fail(TILEWISE_UNSUPPORTED,
                "%s: has B = %lld, must have 1 in the balanced schedule, or be packed (T, H, D)",
                name, printable(tensor.shape[0]));
  }
  --tensor.rank;
  std::copy(tensor.shape + 1, tensor.shape + 1 + tensor.rank, tensor.shape);
  std::copy(tensor.strides + 1, tensor.strides + 1 + tensor.rank, tensor.strides);
  if (heads_first) {
    std::swap(tensor.shape[0], tensor.shape[1]);
    std::swap(tensor.strides[0], tensor.strides[1]);
  }
  return TILEWISE_OK;
}

}  // namespace

Status packed_request(const tilewise_problem& request, std::int64_t ranks,
                      tilewise_problem* packed) {
  TILEWISE_RETURN_IF_ERROR(check_options(request, ranks));
  TILEWISE_RETURN_IF_ERROR(check_devices(request));
  TILEWISE_RETURN_IF_ERROR(refuse_score_function(request));
  TILEWISE_RETURN_IF_ERROR(problem::refuse_fp8(request, "distributed attention"));
  *packed = request;
  if (request.q.rank != 4) return TILEWISE_OK;
  using P = tilewise_problem;
  const bool heads_first = request.layout == TILEWISE_BHSD;
  for (const problem::NamedTensor& named : problem::kTensors) {
    const bool rows =
        is_one_of(named.member, {&P::q, &P::k, &P::v, &P::out, &P::dout, &P::dq, &P::dk, &P::dv});
    const bool statistics = is_one_of(named.member, {&P::lse, &P::dlse});
    tilewise_tensor& tensor = packed->*named.member;
    if (!present(tensor) || !(rows || statistics)) continue;
    TILEWISE_RETURN_IF_ERROR(
        problem::check_rank(named.name, tensor, rows ? 4 : 3, rows ? "(B, S, H, D)" : "(B, H, S)"));
    TILEWISE_RETURN_IF_ERROR(remove_batch(named.name, rows && heads_first, tensor));
  }
  return TILEWISE_OK;
}

}  // namespace tilewise::distributed::magi
