#include "problem/fp8.h"

#include "math/integer.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::problem {

// Checks a tensor that may be fp32, bf16 or fp16 where k and v are fp8.
Status check_beside_fp8(const char* name, const tilewise_tensor& tensor) {
  if (tensor.dtype == TILEWISE_FP32 || tensor.dtype == TILEWISE_BF16 ||
      tensor.dtype == TILEWISE_FP16)
    return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT,
              "%s: dtype is %s, must be bf16, fp16 or fp32 with k of fp8", name,
              dtype_name(tensor.dtype));
}

Status refuse_fp8(const tilewise_problem& request, const char* what) {
  if (!is_fp8(request.k.dtype)) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "k: dtype is %s, %s takes fp64, fp32, bf16 and fp16",
              dtype_name(request.k.dtype), what);
}

Status check_fp8(const tilewise_problem& request, Operation operation) {
  const std::int32_t dtype = request.k.dtype;
  TILEWISE_RETURN_IF_ERROR(check_dtype("v", request.v, dtype, dtype));
  if (operation == Operation::kBackward) TILEWISE_RETURN_IF_ERROR(refuse_fp8(request, "backward"));
  if (request.q.dtype == dtype) return TILEWISE_OK;
  if (!is_fp8(request.q.dtype)) return check_beside_fp8("q", request.q);
  return fail(TILEWISE_INVALID_ARGUMENT, "q: dtype is %s, must be %s as k, or bf16, fp16 or fp32",
              dtype_name(request.q.dtype), dtype_name(dtype));
}

namespace {

// Reads a descale tensor of q, k or v: (1), (B, Hk), or (B, Hk, blocks) with the blocks of `rows`.
Status read_descale(const char* name, const tilewise_tensor& tensor, const View& scaled,
                    const Problem& problem, bool packed, std::int64_t rows, View* view) {
  if (!present(tensor)) return TILEWISE_OK;
  if (!is_fp8(scaled.dtype)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: given for a tensor of %s, must be e4m3 or e5m2",
                name, dtype_name(scaled.dtype));
  }
  TILEWISE_RETURN_IF_ERROR(check_dtype(name, tensor, TILEWISE_FP32, TILEWISE_FP32));
  const bool blocks = tensor.rank == 3;
  const std::int64_t one[] = {1};
  const std::int64_t shape[] = {blocks && packed ? 1 : problem.batch, problem.kv_heads,
                                math::ceil_div(rows, kDescaleRows)};
  if (tensor.rank < 2) {
    TILEWISE_RETURN_IF_ERROR(
        check_shape(name, tensor, 1, one, "(1), (B, Hk) or (B, Hk, blocks of 128 rows)"));
  } else {
    TILEWISE_RETURN_IF_ERROR(check_shape(name, tensor, blocks ? 3 : 2, shape,
                                         !blocks  ? "(B, Hk)"
                                         : packed ? "(1, Hk, blocks of 128 tokens)"
                                                  : "(B, Hk, blocks of 128 rows)"));
  }
  view->data = tensor.data;
  view->dtype = tensor.dtype;
  if (tensor.rank < 2) return TILEWISE_OK;
  view->batch = stride_of(tensor, 0);
  view->head = stride_of(tensor, 1);
  view->row = blocks ? stride_of(tensor, 2) : 0;
  return TILEWISE_OK;
}

}  // namespace

Status read_descales(const tilewise_problem& request, Problem* problem) {
  TILEWISE_RETURN_IF_ERROR(read_descale("q_descale", request.q_descale, problem->q, *problem,
                                        problem->q_packed, problem->q_rows, &problem->q_descale));
  TILEWISE_RETURN_IF_ERROR(read_descale("k_descale", request.k_descale, problem->k, *problem,
                                        problem->k_packed, problem->k_rows, &problem->k_descale));
  return read_descale("v_descale", request.v_descale, problem->v, *problem, problem->k_packed,
                      problem->k_rows, &problem->v_descale);
}

}  // namespace tilewise::problem
