#include "problem/validate.h"

#include "math/integer.h"
#include "problem/checked.h"
#include "problem/fp8.h"
#include "problem/options.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::problem {
namespace {

Status check_qkv(const tilewise_problem& request, Operation operation) {
  const struct {
    const char* name;
    const tilewise_tensor& tensor;
  } required[] = {{"q", request.q}, {"k", request.k}, {"v", request.v}};
  for (const auto& [name, tensor] : required) {
    if (tensor.rank != 3 && tensor.rank != 4) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s: rank is %d, must be 4 (dense) or 3 (packed: T, heads, dimension)", name,
                  tensor.rank);
    }
    if (!is_floating(tensor.dtype)) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s: dtype is %s, must be fp64, fp32, bf16, fp16, e4m3 or e5m2", name,
                  dtype_name(tensor.dtype));
    }
    if (!is_fp8(request.k.dtype))
      TILEWISE_RETURN_IF_ERROR(check_dtype(name, tensor, request.q.dtype, request.q.dtype));
    TILEWISE_RETURN_IF_ERROR(check_innermost(name, tensor));
  }
  return is_fp8(request.k.dtype) ? check_fp8(request, operation) : TILEWISE_OK;
}

// Reads page_table, and the number of sequences and keys that it gives k and v.
Status read_page_table(const tilewise_problem& request, Sides& k, Problem* problem) {
  const tilewise_tensor& table = request.page_table;
  if (!present(table)) return TILEWISE_OK;
  if (problem->operation == Operation::kBackward)
    return fail(TILEWISE_UNSUPPORTED, "page_table: backward does not support paged caches");
  TILEWISE_RETURN_IF_ERROR(check_rank("page_table", table, 2, "(B, pages)"));
  TILEWISE_RETURN_IF_ERROR(check_dtype("page_table", table, TILEWISE_INT32, TILEWISE_INT32));
  if (k.batch < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "k: rank is 3, must be 4 with page_table: (pages, page size, Hk, D)");
  }
  if (k.rows < 1) return fail(TILEWISE_INVALID_ARGUMENT, "k: page size is 0, must be >= 1");
  if (k.batch < 1 && table.shape[0] > 0 && table.shape[1] > 0)
    return fail(TILEWISE_INVALID_ARGUMENT, "k: has 0 pages, must have >= 1 with page_table");
  const Checked keys = Checked{table.shape[1]} * Checked{k.rows};
  if (!keys.valid) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "page_table: %lld pages of %lld keys, must be < 2^63 keys",
                printable(table.shape[1]), printable(k.rows));
  }
  problem->page_table = {static_cast<const std::int32_t*>(table.data),
                         stride_of(table, 0),
                         stride_of(table, 1),
                         table.shape[1],
                         k.batch,
                         k.rows};
  k.batch = table.shape[0];
  k.rows = keys.value;
  return TILEWISE_OK;
}

Status read_sizes(const tilewise_problem& request, Problem* problem) {
  const Sides q = sides_of(request.q, request.layout);
  Sides k = sides_of(request.k, request.layout);
  const Sides v = sides_of(request.v, request.layout);
  if (v.batch != k.batch || v.rows != k.rows || v.heads != k.heads) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "v: shape is %s, must be that of k %s except for the last dimension",
                shape_text(request.v.rank, request.v.shape).text,
                shape_text(request.k.rank, request.k.shape).text);
  }
  if (q.width != k.width) {
    return fail(TILEWISE_INVALID_ARGUMENT, "k: head dimension is %lld, must be q's %lld",
                printable(k.width), printable(q.width));
  }
  if (q.width < 1) return fail(TILEWISE_INVALID_ARGUMENT, "q: head dimension D is 0, must be >= 1");
  if (v.width < 1)
    return fail(TILEWISE_INVALID_ARGUMENT, "v: head dimension Dv is 0, must be >= 1");
  if (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "q: %lld heads, must be a multiple of k's %lld",
                printable(q.heads), printable(k.heads));
  }
  TILEWISE_RETURN_IF_ERROR(read_page_table(request, k, problem));
  problem->q_packed = q.batch < 0;
  problem->k_packed = k.batch < 0;
  problem->q_rows = q.rows;
  problem->k_rows = k.rows;
  problem->heads = q.heads;
  problem->kv_heads = k.heads;
  problem->group = k.heads > 0 ? q.heads / k.heads : 1;
  problem->head_dim = q.width;
  problem->value_dim = v.width;
  if (!problem->q_packed && !problem->k_packed && q.batch != k.batch) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: batch is %lld, must be q's %lld",
                problem->page_table.present() ? "page_table" : "k", printable(k.batch),
                printable(q.batch));
  }
  if (!problem->q_packed || !problem->k_packed)
    problem->batch = problem->q_packed ? k.batch : q.batch;
  return TILEWISE_OK;
}

Status read_side(const char* name, const tilewise_tensor& cu_seqlens, bool packed,
                 std::int64_t max_seqlen, const char* max_name, Problem* problem) {
  const bool has_slices = problem->slices.present();
  if (present(cu_seqlens) && !packed) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "%s: given for a dense tensor (rank 4); packed is rank 3", name);
  }
  if (present(cu_seqlens) && has_slices) {
    return fail(
        TILEWISE_INVALID_ARGUMENT,
        "%s: cannot be given with slices of packed tensors, which refer to the whole token axis",
        name);
  }
  if (packed && !has_slices && !present(cu_seqlens)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: missing, but the tensor is packed (rank 3)", name);
  }
  if (max_seqlen < -1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %lld, must be >= 0, or -1 for unknown", max_name,
                printable(max_seqlen));
  }
  if (!present(cu_seqlens)) return TILEWISE_OK;
  TILEWISE_RETURN_IF_ERROR(check_rank(name, cu_seqlens, 1, "(B+1)"));
  if (cu_seqlens.shape[0] < 1)
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: is empty, must have B+1 >= 1 numbers", name);
  return TILEWISE_OK;
}

Status read_sequences(const tilewise_problem& request, Problem* problem) {
  if (present(request.slices)) {
    const tilewise_tensor& slices = request.slices;
    TILEWISE_RETURN_IF_ERROR(check_rank("slices", slices, 2, "(N, 5) or (N, 6)"));
    TILEWISE_RETURN_IF_ERROR(check_dtype("slices", slices, TILEWISE_INT64, TILEWISE_INT64));
    if (slices.shape[1] != 5 && slices.shape[1] != 6) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "slices: %lld columns, must be 5 or 6: q0 q1 k0 k1 kind [head]",
                  printable(slices.shape[1]));
    }
    problem->slices = {slices.data,          slices.dtype,    slices.shape[0],
                       stride_of(slices, 0), slices.shape[1], stride_of(slices, 1)};
    if (request.causal || request.window_left != -1 || request.window_right != -1) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "slices: given with %s; a slice list is the whole mask",
                  request.causal ? "causal" : "a window");
    }
    if (problem->q_packed != problem->k_packed) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "slices: q is %s and k is %s, must be both dense or both packed",
                  problem->q_packed ? "packed" : "dense", problem->k_packed ? "packed" : "dense");
    }
    if (problem->q_packed && present(request.alibi_slopes)) {
      return fail(TILEWISE_UNSUPPORTED, "alibi_slopes: not defined for slices of packed tensors");
    }
    const bool cuts_q = present(request.seqused_q);
    if (problem->q_packed && (cuts_q || present(request.seqused_k))) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s: slices of packed tensors have no sequences to cut",
                  cuts_q ? "seqused_q" : "seqused_k");
    }
  }
  TILEWISE_RETURN_IF_ERROR(read_side("cu_seqlens_q", request.cu_seqlens_q, problem->q_packed,
                                     request.max_seqlen_q, "max_seqlen_q", problem));
  TILEWISE_RETURN_IF_ERROR(read_side("cu_seqlens_k", request.cu_seqlens_k, problem->k_packed,
                                     request.max_seqlen_k, "max_seqlen_k", problem));
  const bool both_packed = problem->q_packed && problem->k_packed;
  if (both_packed)
    problem->batch = present(request.cu_seqlens_q) ? request.cu_seqlens_q.shape[0] - 1 : 1;
  TILEWISE_RETURN_IF_ERROR(
      read_index("cu_seqlens_q", request.cu_seqlens_q, problem->batch + 1, &problem->cu_seqlens_q));
  TILEWISE_RETURN_IF_ERROR(
      read_index("cu_seqlens_k", request.cu_seqlens_k, problem->batch + 1, &problem->cu_seqlens_k));
  TILEWISE_RETURN_IF_ERROR(
      read_index("seqused_q", request.seqused_q, problem->batch, &problem->seqused_q));
  TILEWISE_RETURN_IF_ERROR(
      read_index("seqused_k", request.seqused_k, problem->batch, &problem->seqused_k));
  TILEWISE_RETURN_IF_ERROR(read_parts(request.parts, *problem, &problem->parts));
  problem->max_q = problem->q_rows;
  problem->max_k = problem->k_rows;
  if (present(request.cu_seqlens_q) && request.max_seqlen_q >= 0) {
    problem->max_q = math::min(request.max_seqlen_q, problem->q_rows);
  }
  if (present(request.cu_seqlens_k) && request.max_seqlen_k >= 0) {
    problem->max_k = math::min(request.max_seqlen_k, problem->k_rows);
  }
  // Checks the counts that kernels form: work items, statistics, row and key numbers.
  const Checked rows = Checked{problem->q_rows} + Checked{problem->k_rows} + Checked{1};
  const Checked count =
      Checked{problem->batch + 1} * Checked{problem->heads + 1} * rows * Checked{16};
  if (!count.valid) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "q: B = %lld, H = %lld, Sq = %lld, Sk = %lld: B * H * (Sq + Sk) must be < 2^59",
                printable(problem->batch), printable(problem->heads), printable(problem->q_rows),
                printable(problem->k_rows));
  }
  return TILEWISE_OK;
}

// Reads a tensor (H), or (B, H) with a number for each sequence.
Status read_slopes(const char* name, const tilewise_tensor& tensor, const Problem& problem,
                   View* view) {
  const std::int64_t shape[] = {problem.batch, problem.heads};
  const bool per_batch = tensor.rank == 2;
  TILEWISE_RETURN_IF_ERROR(check_shape(name, tensor, per_batch ? 2 : 1,
                                       per_batch ? shape : shape + 1,
                                       per_batch ? "(B, H)" : "(H)"));
  view->data = tensor.data;
  view->dtype = tensor.dtype;
  view->batch = per_batch ? stride_of(tensor, 0) : 0;
  view->head = stride_of(tensor, per_batch ? 1 : 0);
  return TILEWISE_OK;
}

Status read_score_inputs(const tilewise_problem& request, Problem* problem) {
  std::int64_t mask_shape[4];
  if (present(request.mask)) {
    TILEWISE_RETURN_IF_ERROR(check_dtype("mask", request.mask, TILEWISE_BOOL, TILEWISE_BOOL));
    TILEWISE_RETURN_IF_ERROR(
        read_scores(*problem, "mask", request.mask, mask_shape, &problem->mask));
  }
  if (present(request.bias)) {
    TILEWISE_RETURN_IF_ERROR(
        is_fp8(problem->dtype) ? check_beside_fp8("bias", request.bias)
                               : check_dtype("bias", request.bias, problem->dtype, TILEWISE_FP32));
    TILEWISE_RETURN_IF_ERROR(
        read_scores(*problem, "bias", request.bias, problem->bias_shape, &problem->bias));
  }
  if (present(request.alibi_slopes)) {
    TILEWISE_RETURN_IF_ERROR(
        check_dtype("alibi_slopes", request.alibi_slopes, TILEWISE_FP32, TILEWISE_FP32));
    TILEWISE_RETURN_IF_ERROR(
        read_slopes("alibi_slopes", request.alibi_slopes, *problem, &problem->alibi_slopes));
  }
  if (present(request.sink)) {
    const std::int64_t shape[] = {problem->heads};
    TILEWISE_RETURN_IF_ERROR(check_dtype("sink", request.sink, TILEWISE_FP32, TILEWISE_FP32));
    TILEWISE_RETURN_IF_ERROR(check_shape("sink", request.sink, 1, shape, "(H)"));
    problem->sink.data = request.sink.data;
    problem->sink.dtype = request.sink.dtype;
    problem->sink.head = stride_of(request.sink, 0);
  }
  return TILEWISE_OK;
}

// Reads phi and the counter of FlashDecoding++.
Status read_phi(const tilewise_problem& request, Problem* problem) {
  const tilewise_tensor& phi = request.phi;
  const std::int64_t one[] = {1};
  if (present(phi)) {
    TILEWISE_RETURN_IF_ERROR(check_dtype("phi", phi, TILEWISE_FP32, TILEWISE_FP32));
    TILEWISE_RETURN_IF_ERROR(check_rank("phi", phi, 1, "(1) or (H)"));
    const std::int64_t count = phi.shape[0];
    if (count != 1 && count != problem->heads) {
      return fail(TILEWISE_INVALID_ARGUMENT, "phi: shape is (%lld), must be (1) or (H) = (%lld)",
                  printable(count), printable(problem->heads));
    }
    problem->phi.data = phi.data;
    problem->phi.dtype = phi.dtype;
    problem->phi.head = stride_of(phi, 0);
  }
  const tilewise_tensor& fallbacks = request.phi_fallbacks;
  if (present(fallbacks)) {
    if (!present(phi)) return fail(TILEWISE_INVALID_ARGUMENT, "phi_fallbacks: given without phi");
    TILEWISE_RETURN_IF_ERROR(
        check_dtype("phi_fallbacks", fallbacks, TILEWISE_INT64, TILEWISE_INT64));
    TILEWISE_RETURN_IF_ERROR(check_shape("phi_fallbacks", fallbacks, 1, one, "(1)"));
    problem->phi_fallbacks.data = fallbacks.data;
    problem->phi_fallbacks.dtype = fallbacks.dtype;
  }
  return TILEWISE_OK;
}

// Checks the dtype of an output that accumulates: sums of parts are not rounded to 16 bits.
Status check_accumulated(const char* name, const tilewise_tensor& tensor, const Problem& problem) {
  if (!problem.accumulate || tensor.dtype == problem.statistics) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: dtype is %s, must be %s with accumulate", name,
              dtype_name(tensor.dtype), dtype_name(problem.statistics));
}

Status read_forward(const tilewise_problem& request, Problem* problem) {
  const std::int32_t dtype = problem->dtype;
  if (!present(request.out)) return fail(TILEWISE_INVALID_ARGUMENT, "out: missing");
  TILEWISE_RETURN_IF_ERROR(is_fp8(dtype) ? check_beside_fp8("out", request.out)
                                         : check_dtype("out", request.out, dtype, TILEWISE_FP32));
  if (problem->operation == Operation::kForward) {
    TILEWISE_RETURN_IF_ERROR(check_accumulated("out", request.out, *problem));
    if (problem->accumulate && !present(request.lse)) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "lse: missing, accumulate needs that of the earlier parts");
    }
  }
  TILEWISE_RETURN_IF_ERROR(
      read_rows(request, *problem, "out", request.out, true, problem->value_dim, &problem->out));
  return read_statistics(*problem, "lse", request.lse, &problem->lse);
}

Status read_backward(const tilewise_problem& request, Problem* problem) {
  const std::int32_t dtype = problem->dtype;
  if (!present(request.lse))
    return fail(TILEWISE_INVALID_ARGUMENT, "lse: missing, backward needs that of forward");
  if (!present(request.dout)) return fail(TILEWISE_INVALID_ARGUMENT, "dout: missing");
  TILEWISE_RETURN_IF_ERROR(check_dtype("dout", request.dout, dtype, dtype));
  TILEWISE_RETURN_IF_ERROR(
      read_rows(request, *problem, "dout", request.dout, true, problem->value_dim, &problem->dout));
  TILEWISE_RETURN_IF_ERROR(read_statistics(*problem, "dlse", request.dlse, &problem->dlse));
  const struct {
    const char* name;
    const tilewise_tensor& tensor;
    bool query_side;
    std::int64_t width;
    View* view;
  } gradients[] = {{"dq", request.dq, true, problem->head_dim, &problem->dq},
                   {"dk", request.dk, false, problem->head_dim, &problem->dk},
                   {"dv", request.dv, false, problem->value_dim, &problem->dv}};
  for (const auto& gradient : gradients) {
    if (!present(gradient.tensor)) continue;
    TILEWISE_RETURN_IF_ERROR(check_dtype(gradient.name, gradient.tensor, dtype, TILEWISE_FP32));
    TILEWISE_RETURN_IF_ERROR(check_accumulated(gradient.name, gradient.tensor, *problem));
    TILEWISE_RETURN_IF_ERROR(read_rows(request, *problem, gradient.name, gradient.tensor,
                                       gradient.query_side, gradient.width, gradient.view));
  }
  if (present(request.dbias)) {
    if (!present(request.bias)) return fail(TILEWISE_INVALID_ARGUMENT, "dbias: given without bias");
    const std::int32_t of_bias = problem->accumulate ? TILEWISE_FP32 : request.bias.dtype;
    TILEWISE_RETURN_IF_ERROR(check_dtype("dbias", request.dbias, of_bias,
                                         problem->accumulate ? problem->statistics : of_bias));
    TILEWISE_RETURN_IF_ERROR(
        check_shape("dbias", request.dbias, request.bias.rank, request.bias.shape, "that of bias"));
    std::int64_t extents[4];
    TILEWISE_RETURN_IF_ERROR(
        read_scores(*problem, "dbias", request.dbias, extents, &problem->dbias));
  }
  if (present(request.dsink)) {
    const std::int64_t shape[] = {problem->heads};
    if (!present(request.sink)) return fail(TILEWISE_INVALID_ARGUMENT, "dsink: given without sink");
    TILEWISE_RETURN_IF_ERROR(
        check_dtype("dsink", request.dsink, TILEWISE_FP32, problem->statistics));
    TILEWISE_RETURN_IF_ERROR(check_shape("dsink", request.dsink, 1, shape, "(H)"));
    problem->dsink.data = request.dsink.data;
    problem->dsink.dtype = request.dsink.dtype;
    problem->dsink.head = stride_of(request.dsink, 0);
  }
  if (present(request.dalibi_slopes)) {
    const tilewise_tensor& slopes = request.alibi_slopes;
    if (!present(slopes))
      return fail(TILEWISE_INVALID_ARGUMENT, "dalibi_slopes: given without alibi_slopes");
    TILEWISE_RETURN_IF_ERROR(
        check_dtype("dalibi_slopes", request.dalibi_slopes, TILEWISE_FP32, problem->statistics));
    TILEWISE_RETURN_IF_ERROR(check_shape("dalibi_slopes", request.dalibi_slopes, slopes.rank,
                                         slopes.shape, "that of alibi_slopes"));
    TILEWISE_RETURN_IF_ERROR(
        read_slopes("dalibi_slopes", request.dalibi_slopes, *problem, &problem->dalibi_slopes));
    problem->slopes_per_batch = slopes.rank == 2;
  }
  return TILEWISE_OK;
}

}  // namespace

Status make_problem(Operation operation, const tilewise_problem& request, Problem* problem) {
  *problem = Problem{};
  problem->operation = operation;
  for (const NamedTensor& named : kTensors) {
    if (named.role(operation) == Role::kUnused) continue;
    TILEWISE_RETURN_IF_ERROR(check_tensor(named.name, request.*named.member));
    TILEWISE_RETURN_IF_ERROR(check_device(named.name, request.*named.member, request.q));
  }
  problem->device = request.q.device;
  problem->device_index = request.q.device_index;
  TILEWISE_RETURN_IF_ERROR(read_options(request, problem));
  TILEWISE_RETURN_IF_ERROR(check_qkv(request, operation));
  problem->dtype = request.k.dtype;
  problem->statistics = problem->dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
  TILEWISE_RETURN_IF_ERROR(read_sizes(request, problem));
  TILEWISE_RETURN_IF_ERROR(read_sequences(request, problem));
  TILEWISE_RETURN_IF_ERROR(read_scale(request, problem));
  problem->q = row_view(request.q, request.layout);
  problem->k = row_view(request.k, request.layout);
  problem->v = row_view(request.v, request.layout);
  TILEWISE_RETURN_IF_ERROR(read_descales(request, problem));
  TILEWISE_RETURN_IF_ERROR(read_score_inputs(request, problem));
  TILEWISE_RETURN_IF_ERROR(read_forward(request, problem));
  return operation == Operation::kBackward ? read_backward(request, problem)
                                           : read_phi(request, problem);
}

}  // namespace tilewise::problem
