#include "problem/read_tensors.h"

#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::problem {

Sides sides_of(const tilewise_tensor& tensor, std::int32_t layout) {
  if (tensor.rank == 3) return {-1, tensor.shape[0], tensor.shape[1], tensor.shape[2]};
  const bool heads_first = layout == TILEWISE_BHSD;
  return {tensor.shape[0], tensor.shape[heads_first ? 2 : 1], tensor.shape[heads_first ? 1 : 2],
          tensor.shape[3]};
}

View row_view(const tilewise_tensor& tensor, std::int32_t layout) {
  View view;
  view.data = tensor.data;
  view.dtype = tensor.dtype;
  view.column = 1;
  if (tensor.rank == 3) {
    view.row = stride_of(tensor, 0);
    view.head = stride_of(tensor, 1);
  } else {
    view.batch = stride_of(tensor, 0);
    view.row = stride_of(tensor, layout == TILEWISE_BHSD ? 2 : 1);
    view.head = stride_of(tensor, layout == TILEWISE_BHSD ? 1 : 2);
  }
  return view;
}

Status read_rows(const tilewise_problem& request, const Problem& problem, const char* name,
                 const tilewise_tensor& tensor, bool query_side, std::int64_t width, View* view) {
  if (!present(tensor)) return TILEWISE_OK;
  const bool packed = query_side ? problem.q_packed : problem.k_packed;
  const std::int64_t rows = query_side ? problem.q_rows : problem.k_rows;
  const std::int64_t heads = query_side ? problem.heads : problem.kv_heads;
  if (packed) {
    const std::int64_t shape[] = {rows, heads, width};
    TILEWISE_RETURN_IF_ERROR(
        check_shape(name, tensor, 3, shape, query_side ? "(T, H, ...)" : "(T, Hk, ...)"));
  } else if (request.layout == TILEWISE_BHSD) {
    const std::int64_t shape[] = {problem.batch, heads, rows, width};
    TILEWISE_RETURN_IF_ERROR(
        check_shape(name, tensor, 4, shape, query_side ? "(B, H, Sq, ...)" : "(B, Hk, Sk, ...)"));
  } else {
    const std::int64_t shape[] = {problem.batch, rows, heads, width};
    TILEWISE_RETURN_IF_ERROR(
        check_shape(name, tensor, 4, shape, query_side ? "(B, Sq, H, ...)" : "(B, Sk, Hk, ...)"));
  }
  TILEWISE_RETURN_IF_ERROR(check_innermost(name, tensor));
  *view = row_view(tensor, request.layout);
  return TILEWISE_OK;
}

Status read_statistics(const Problem& problem, const char* name, const tilewise_tensor& tensor,
                       View* view) {
  if (!present(tensor)) return TILEWISE_OK;
  TILEWISE_RETURN_IF_ERROR(check_dtype(name, tensor, problem.statistics, problem.statistics));
  view->data = tensor.data;
  view->dtype = tensor.dtype;
  if (problem.q_packed) {
    const std::int64_t shape[] = {problem.heads, problem.q_rows};
    TILEWISE_RETURN_IF_ERROR(check_shape(name, tensor, 2, shape, "(H, T)"));
    view->head = stride_of(tensor, 0);
    view->row = stride_of(tensor, 1);
  } else {
    const std::int64_t shape[] = {problem.batch, problem.heads, problem.q_rows};
    TILEWISE_RETURN_IF_ERROR(check_shape(name, tensor, 3, shape, "(B, H, Sq)"));
    view->batch = stride_of(tensor, 0);
    view->head = stride_of(tensor, 1);
    view->row = stride_of(tensor, 2);
  }
  return TILEWISE_OK;
}

Status read_scores(const Problem& problem, const char* name, const tilewise_tensor& tensor,
                   std::int64_t extents[4], View* view) {
  const std::int64_t full[4] = {problem.batch, problem.heads, problem.max_q, problem.max_k};
  std::int64_t strides[4] = {0, 0, 0, 0};
  for (int d = 0; d < 4; ++d) extents[d] = 1;
  for (int d = 0; d < tensor.rank; ++d) {
    const int target = 4 - tensor.rank + d;
    if (tensor.shape[d] != 1 && tensor.shape[d] != full[target]) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s: shape is %s, does not broadcast to (B, H, Sq, Sk) = %s", name,
                  shape_text(tensor.rank, tensor.shape).text, shape_text(4, full).text);
    }
    extents[target] = tensor.shape[d];
    strides[target] = stride_of(tensor, d);
  }
  *view = {tensor.data, tensor.dtype, strides[0], strides[1], strides[2], strides[3]};
  return TILEWISE_OK;
}

Status read_index(const char* name, const tilewise_tensor& tensor, std::int64_t count,
                  IndexView* view) {
  if (!present(tensor)) return TILEWISE_OK;
  TILEWISE_RETURN_IF_ERROR(check_dtype(name, tensor, TILEWISE_INT32, TILEWISE_INT64));
  const std::int64_t shape[] = {count};
  TILEWISE_RETURN_IF_ERROR(
      check_shape(name, tensor, 1, shape, "(B) for seqused, (B+1) for cu_seqlens"));
  *view = {tensor.data, tensor.dtype, count, stride_of(tensor, 0), 1, 1};
  return TILEWISE_OK;
}

Status read_parts(const tilewise_tensor& tensor, const Problem& problem, IndexView* view) {
  if (!present(tensor)) return TILEWISE_OK;
  if (problem.slices.present()) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "parts: given with slices, which have coordinates of their own");
  }
  TILEWISE_RETURN_IF_ERROR(check_dtype("parts", tensor, TILEWISE_INT64, TILEWISE_INT64));
  const std::int64_t shape[] = {problem.batch, 4};
  TILEWISE_RETURN_IF_ERROR(
      check_shape("parts", tensor, 2, shape, "(B, 4: number, row, key and d of the whole)"));
  *view = {tensor.data, tensor.dtype, problem.batch, stride_of(tensor, 0), 4, stride_of(tensor, 1)};
  return TILEWISE_OK;
}

}  // namespace tilewise::problem
