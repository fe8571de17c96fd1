#include "problem/quantisation.h"

#include "math/integer.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::problem {
namespace {

Status check_flag(const char* name, std::int32_t value) {
  if (value == 0 || value == 1) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %d, must be 0 or 1", name, value);
}

Status check_options(const tilewise_quantisation& request) {
  TILEWISE_RETURN_IF_ERROR(check_flag("layout", request.layout));
  TILEWISE_RETURN_IF_ERROR(check_flag("fixed_scales", request.fixed_scales));
  TILEWISE_RETURN_IF_ERROR(check_flag("incoherent", request.incoherent));
  if (request.reserved == 0) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "reserved: is %d, must be 0", request.reserved);
}

Status check_device_of_input(const tilewise_quantisation& request, const char* name,
                             const tilewise_tensor& tensor) {
  TILEWISE_RETURN_IF_ERROR(check_tensor(name, tensor));
  const tilewise_tensor& input = request.input;
  if (!present(tensor) ||
      (tensor.device == input.device && tensor.device_index == input.device_index))
    return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: device is %s, must be that of input: %s", name,
              device_text(tensor.device, tensor.device_index).text,
              device_text(input.device, input.device_index).text);
}

bool is_16_or_32_bits(std::int32_t dtype) {
  return dtype == TILEWISE_FP32 || dtype == TILEWISE_BF16 || dtype == TILEWISE_FP16;
}

Status read_input(const tilewise_quantisation& request, Quantisation* task) {
  const tilewise_tensor& input = request.input;
  if (input.rank != 3 && input.rank != 4) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "input: rank is %d, must be 4: (B, S, H, D), or 3: (T, H, D)", input.rank);
  }
  if (!is_16_or_32_bits(input.dtype)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "input: dtype is %s, must be fp32, bf16 or fp16",
                dtype_name(input.dtype));
  }
  TILEWISE_RETURN_IF_ERROR(check_innermost("input", input));
  const Sides sides = sides_of(input, request.layout);
  task->sequences = input.rank == 3 ? 1 : sides.batch;
  task->rows = sides.rows;
  task->heads = sides.heads;
  task->width = sides.width;
  task->input = row_view(input, request.layout);
  return TILEWISE_OK;
}

Status read_output(const tilewise_quantisation& request, Quantisation* task) {
  const tilewise_tensor& output = request.output;
  TILEWISE_RETURN_IF_ERROR(
      check_shape("output", output, request.input.rank, request.input.shape, "that of input"));
  TILEWISE_RETURN_IF_ERROR(check_innermost("output", output));
  task->output = row_view(output, request.layout);
  if (is_fp8(output.dtype)) return TILEWISE_OK;
  if (is_16_or_32_bits(output.dtype) && task->incoherent) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "output: dtype is %s, must be e4m3 or e5m2%s",
              dtype_name(output.dtype),
              task->incoherent ? ", or fp32, bf16 or fp16 without scales" : "");
}

// Reads the list of starts, whose sequences have scales of their own.
Status read_starts(const tilewise_quantisation& request, Quantisation* task) {
  const tilewise_tensor& starts = request.cu_seqlens;
  if (!present(starts)) return TILEWISE_OK;
  if (request.input.rank != 3 || request.descale.rank != 2) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "cu_seqlens: given with input of rank %d and descale of rank %d, must be with a "
                "packed input (rank 3) and a scale for each sequence and head (rank 2)",
                request.input.rank, request.descale.rank);
  }
  TILEWISE_RETURN_IF_ERROR(check_rank("cu_seqlens", starts, 1, "(B + 1)"));
  TILEWISE_RETURN_IF_ERROR(check_dtype("cu_seqlens", starts, TILEWISE_INT32, TILEWISE_INT64));
  if (starts.shape[0] < 1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "cu_seqlens: shape is (0), must be (B + 1)");
  }
  task->sequences = starts.shape[0] - 1;
  task->cu_seqlens = {starts.data, starts.dtype, starts.shape[0], stride_of(starts, 0), 1, 1};
  return TILEWISE_OK;
}

// Reads the scales: (1), (B, Hk) or (B, Hk, blocks).
Status read_scales(const tilewise_quantisation& request, Quantisation* task) {
  const tilewise_tensor& scales = request.descale;
  if (!is_fp8(request.output.dtype)) {
    if (!present(scales) && !present(request.saturated)) return TILEWISE_OK;
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: given for an output of %s, must be e4m3 or e5m2",
                present(scales) ? "descale" : "saturated", dtype_name(request.output.dtype));
  }
  if (!present(scales)) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "descale: is absent, must be (1), (B, Hk) or (B, Hk, blocks of 128 rows)");
  }
  TILEWISE_RETURN_IF_ERROR(check_dtype("descale", scales, TILEWISE_FP32, TILEWISE_FP32));
  const std::int64_t heads = scales.rank == 1 ? task->heads : scales.shape[1];
  const bool divides = heads > 0 ? task->heads % heads == 0 : task->heads == 0;
  if (!divides || heads < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "descale: has %lld heads, must divide the %lld heads of input", printable(heads),
                printable(task->heads));
  }
  const std::int64_t one[] = {1};
  const std::int64_t shape[] = {task->sequences, heads, math::ceil_div(task->rows, kDescaleRows)};
  TILEWISE_RETURN_IF_ERROR(check_shape("descale", scales,
                                       scales.rank == 1 || scales.rank == 2 ? scales.rank : 3,
                                       scales.rank == 1 ? one : shape,
                                       scales.rank == 1   ? "(1)"
                                       : scales.rank == 2 ? "(B, Hk)"
                                                          : "(B, Hk, blocks of 128 rows)"));
  constexpr Shared kOfRank[] = {Shared::kTensor, Shared::kHead, Shared::kBlock};
  task->shared = kOfRank[scales.rank - 1];
  task->kv_heads = heads;
  task->descale = {scales.data, scales.dtype, 0, 0, 0, 0};
  if (scales.rank == 1) return TILEWISE_OK;
  task->descale.batch = stride_of(scales, 0);
  task->descale.head = stride_of(scales, 1);
  task->descale.row = scales.rank == 3 ? stride_of(scales, 2) : 0;
  return TILEWISE_OK;
}

Status read_counter(const tilewise_quantisation& request, Quantisation* task) {
  const tilewise_tensor& counter = request.saturated;
  if (!present(counter)) return TILEWISE_OK;
  const std::int64_t one[] = {1};
  TILEWISE_RETURN_IF_ERROR(check_dtype("saturated", counter, TILEWISE_INT64, TILEWISE_INT64));
  TILEWISE_RETURN_IF_ERROR(check_shape("saturated", counter, 1, one, "(1)"));
  task->saturated = static_cast<std::int64_t*>(counter.data);
  return TILEWISE_OK;
}

Status check_request_memory(const tilewise_quantisation& request) {
  const Operand all[] = {
      {"input", &request.input, Role::kInput},
      {"cu_seqlens", &request.cu_seqlens, Role::kInput},
      {"output", &request.output, Role::kOutput},
      {"descale", &request.descale, request.fixed_scales != 0 ? Role::kInput : Role::kOutput},
      {"saturated", &request.saturated, Role::kCounter}};
  Operand operands[std::size(all)];
  std::size_t count = 0;
  for (const Operand& operand : all) {
    if (has_elements(*operand.tensor)) operands[count++] = operand;
  }
  return check_operands({operands, count});
}

Status check_starts(const Quantisation& task) {
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < task.cu_seqlens.count; ++i) {
    const std::int64_t start = task.cu_seqlens.at(i);
    if (start < previous || start > task.rows) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "cu_seqlens[%lld]: is %lld, must be between %lld (the previous one) and T = %lld",
                  printable(i), printable(start), printable(previous), printable(task.rows));
    }
    previous = start;
  }
  return TILEWISE_OK;
}

Status check_scale(std::int64_t b, std::int64_t h, std::int64_t block, float scale) {
  if (scale >= kSmallestScale && scale <= kLargestScale) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT,
              "descale[%lld][%lld][%lld]: is %g, must be between 2^-126 and 2^126", printable(b),
              printable(h), printable(block), static_cast<double>(scale));
}

Status check_scales(const tilewise_quantisation& request, const Quantisation& task) {
  if (!task.fixed_scales || !has_elements(request.descale)) return TILEWISE_OK;
  const tilewise_tensor& scales = request.descale;
  const std::int64_t extents[] = {scales.rank > 1 ? scales.shape[0] : 1,
                                  scales.rank > 1 ? scales.shape[1] : 1,
                                  scales.rank > 2 ? scales.shape[2] : 1};
  const float* const data = static_cast<const float*>(task.descale.data);
  for (std::int64_t b = 0; b < extents[0]; ++b) {
    for (std::int64_t h = 0; h < extents[1]; ++h) {
      for (std::int64_t block = 0; block < extents[2]; ++block) {
        TILEWISE_RETURN_IF_ERROR(check_scale(b, h, block, data[task.descale.offset(b, h, block)]));
      }
    }
  }
  return TILEWISE_OK;
}

}  // namespace

Status make_quantisation(const tilewise_quantisation& request, Quantisation* task) {
  *task = Quantisation{};
  TILEWISE_RETURN_IF_ERROR(check_options(request));
  TILEWISE_RETURN_IF_ERROR(check_device_of_input(request, "input", request.input));
  TILEWISE_RETURN_IF_ERROR(check_device_of_input(request, "output", request.output));
  TILEWISE_RETURN_IF_ERROR(check_device_of_input(request, "descale", request.descale));
  TILEWISE_RETURN_IF_ERROR(check_device_of_input(request, "cu_seqlens", request.cu_seqlens));
  TILEWISE_RETURN_IF_ERROR(check_device_of_input(request, "saturated", request.saturated));
  task->device = request.input.device;
  task->device_index = request.input.device_index;
  task->fixed_scales = request.fixed_scales != 0;
  task->incoherent = request.incoherent != 0;
  task->seed = request.seed;
  TILEWISE_RETURN_IF_ERROR(read_input(request, task));
  task->kv_heads = task->heads;
  TILEWISE_RETURN_IF_ERROR(read_output(request, task));
  TILEWISE_RETURN_IF_ERROR(read_starts(request, task));
  TILEWISE_RETURN_IF_ERROR(read_scales(request, task));
  TILEWISE_RETURN_IF_ERROR(read_counter(request, task));
  TILEWISE_RETURN_IF_ERROR(check_request_memory(request));
  if (task->device != TILEWISE_CPU) return TILEWISE_OK;
  TILEWISE_RETURN_IF_ERROR(check_starts(*task));
  return check_scales(request, *task);
}

}  // namespace tilewise::problem
