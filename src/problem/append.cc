#include "problem/append.h"

#include <algorithm>
#include <utility>

#include "problem/checked.h"
#include "problem/read_tensors.h"
#include "problem/tensor_checks.h"
#include "problem/tensors.h"

namespace tilewise::problem {
namespace {

struct Named {
  const char* name;
  tilewise_tensor tilewise_append::*member;
  bool required;
};
constexpr Named kTensors[] = {
    {"k_cache", &tilewise_append::k_cache, true},
    {"v_cache", &tilewise_append::v_cache, true},
    {"k", &tilewise_append::k, true},
    {"v", &tilewise_append::v, true},
    {"cache_seqlens", &tilewise_append::cache_seqlens, true},
    {"cu_seqlens_k", &tilewise_append::cu_seqlens_k, false},
    {"cache_batch_idx", &tilewise_append::cache_batch_idx, false},
    {"page_table", &tilewise_append::page_table, false},
    {"rotary_cos", &tilewise_append::rotary_cos, false},
    {"rotary_sin", &tilewise_append::rotary_sin, false},
    {"rotary_seqlens", &tilewise_append::rotary_seqlens, false},
    {"q", &tilewise_append::q, false},
    {"q_rotated", &tilewise_append::q_rotated, false},
    {"cu_seqlens_q", &tilewise_append::cu_seqlens_q, false},
};

Status refuse_pair(const char* name, const char* other) {
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: given without %s", name, other);
}

Status check_presence(const tilewise_append& request) {
  for (const auto& [name, flag] :
       {std::pair{"interleaved", request.interleaved}, std::pair{"q_at_end", request.q_at_end}}) {
    if (flag != 0 && flag != 1)
      return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %d, must be 0 or 1", name, flag);
  }
  for (const Named& named : kTensors) {
    const tilewise_tensor& tensor = request.*named.member;
    TILEWISE_RETURN_IF_ERROR(check_tensor(named.name, tensor));
    if (named.required && !present(tensor))
      return fail(TILEWISE_INVALID_ARGUMENT, "%s: is absent", named.name);
    if (!present(tensor) || (tensor.device == request.k_cache.device &&
                             tensor.device_index == request.k_cache.device_index))
      continue;
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: device is %s, must be that of k_cache: %s",
                named.name, device_text(tensor.device, tensor.device_index).text,
                device_text(request.k_cache.device, request.k_cache.device_index).text);
  }
  const bool rotates = present(request.rotary_cos);
  if (rotates != present(request.rotary_sin))
    return rotates ? refuse_pair("rotary_cos", "rotary_sin")
                   : refuse_pair("rotary_sin", "rotary_cos");
  if (present(request.rotary_seqlens) && !rotates)
    return refuse_pair("rotary_seqlens", "rotary_cos");
  if (present(request.q) && !rotates) return refuse_pair("q", "rotary_cos");
  if (present(request.q) != present(request.q_rotated))
    return present(request.q) ? refuse_pair("q", "q_rotated") : refuse_pair("q_rotated", "q");
  if (present(request.cu_seqlens_q) && !present(request.q)) return refuse_pair("cu_seqlens_q", "q");
  if (present(request.page_table) && present(request.cache_batch_idx)) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "cache_batch_idx: given with page_table, whose rows say where sequences are");
  }
  return TILEWISE_OK;
}

// Queries may be rotated in place.
Status check_memory(const tilewise_append& request) {
  const bool in_place = request.q.data == request.q_rotated.data &&
                        std::equal(request.q.strides, request.q.strides + TILEWISE_MAX_RANK,
                                   request.q_rotated.strides);
  Operand operands[std::size(kTensors)];
  std::size_t count = 0;
  for (const Named& named : kTensors) {
    const tilewise_tensor* const tensor = &(request.*named.member);
    if (!has_elements(*tensor) || (in_place && tensor == &request.q)) continue;
    const bool written =
        tensor == &request.k_cache || tensor == &request.v_cache || tensor == &request.q_rotated;
    operands[count++] = {named.name, tensor, written ? Role::kOutput : Role::kInput};
  }
  return check_operands({operands, count});
}

// Reads rows (batch, row, head, width), or packed (row, head, width), of the caches' dtype.
Status read_tensor(const char* name, const tilewise_tensor& tensor, int rank,
                   const std::int64_t* shape, std::int32_t dtype, View* view) {
  TILEWISE_RETURN_IF_ERROR(check_shape(name, tensor, rank, shape,
                                       rank == 3 ? "(T, heads, width)" : "(B, S, heads, width)"));
  TILEWISE_RETURN_IF_ERROR(check_dtype(name, tensor, dtype, dtype));
  TILEWISE_RETURN_IF_ERROR(check_innermost(name, tensor));
  *view = row_view(tensor, TILEWISE_BSHD);
  return TILEWISE_OK;
}

Status read_caches(const tilewise_append& request, Append* task) {
  const tilewise_tensor& k_cache = request.k_cache;
  TILEWISE_RETURN_IF_ERROR(check_rank("k_cache", k_cache, 4, "(N, S, Hk, D)"));
  TILEWISE_RETURN_IF_ERROR(check_rank("v_cache", request.v_cache, 4, "(N, S, Hk, Dv)"));
  task->dtype = k_cache.dtype;
  if (task->dtype != TILEWISE_FP32 && task->dtype != TILEWISE_BF16 &&
      task->dtype != TILEWISE_FP16) {
    return fail(TILEWISE_UNSUPPORTED, "k_cache: dtype is %s, must be fp32, bf16 or fp16",
                dtype_name(task->dtype));
  }
  task->device = k_cache.device;
  task->device_index = k_cache.device_index;
  task->cache_batch = k_cache.shape[0];
  task->capacity = k_cache.shape[1];
  task->kv_heads = k_cache.shape[2];
  task->head_dim = k_cache.shape[3];
  task->value_dim = request.v_cache.shape[3];
  const std::int64_t values[] = {task->cache_batch, task->capacity, task->kv_heads,
                                 task->value_dim};
  TILEWISE_RETURN_IF_ERROR(
      read_tensor("k_cache", k_cache, 4, k_cache.shape, task->dtype, &task->k_cache));
  return read_tensor("v_cache", request.v_cache, 4, values, task->dtype, &task->v_cache);
}

Status read_lists(const tilewise_append& request, Append* task) {
  TILEWISE_RETURN_IF_ERROR(check_rank("cache_seqlens", request.cache_seqlens, 1, "(B)"));
  const std::int64_t batch = task->batch = request.cache_seqlens.shape[0];
  TILEWISE_RETURN_IF_ERROR(
      read_index("cache_seqlens", request.cache_seqlens, batch, &task->cache_seqlens));
  TILEWISE_RETURN_IF_ERROR(
      read_index("cache_batch_idx", request.cache_batch_idx, batch, &task->cache_batch_idx));
  TILEWISE_RETURN_IF_ERROR(
      read_index("rotary_seqlens", request.rotary_seqlens, batch, &task->rotary_seqlens));
  TILEWISE_RETURN_IF_ERROR(
      read_index("cu_seqlens_k", request.cu_seqlens_k, batch + 1, &task->cu_seqlens_k));
  TILEWISE_RETURN_IF_ERROR(
      read_index("cu_seqlens_q", request.cu_seqlens_q, batch + 1, &task->cu_seqlens_q));
  const tilewise_tensor& table = request.page_table;
  if (!present(table)) {
    if (!present(request.cache_batch_idx) && task->cache_batch < batch) {
      return fail(TILEWISE_INVALID_ARGUMENT, "k_cache: holds %lld sequences, must hold %lld",
                  printable(task->cache_batch), printable(batch));
    }
    return TILEWISE_OK;
  }
  TILEWISE_RETURN_IF_ERROR(check_dtype("page_table", table, TILEWISE_INT32, TILEWISE_INT32));
  TILEWISE_RETURN_IF_ERROR(check_rank("page_table", table, 2, "(B, pages)"));
  const std::int64_t shape[] = {batch, table.shape[1]};
  TILEWISE_RETURN_IF_ERROR(check_shape("page_table", table, 2, shape, "(B, pages)"));
  const std::int64_t size = task->capacity;
  const Checked capacity = Checked{size} * Checked{table.shape[1]};
  if (size < 1 || !capacity.valid)
    return fail(TILEWISE_INVALID_ARGUMENT, "k_cache: pages have %lld keys, must have at least 1",
                printable(size));
  task->page_table = {static_cast<const std::int32_t*>(table.data),
                      stride_of(table, 0),
                      stride_of(table, 1),
                      table.shape[1],
                      task->cache_batch,
                      size};
  task->capacity = capacity.value;
  return TILEWISE_OK;
}

Status read_new_rows(const tilewise_append& request, Append* task) {
  const bool packed = task->cu_seqlens_k.present();
  const int rank = packed ? 3 : 4;
  TILEWISE_RETURN_IF_ERROR(
      check_rank("k", request.k, rank, packed ? "(T, Hk, D) with cu_seqlens_k" : "(B, S, Hk, D)"));
  task->new_rows = request.k.shape[packed ? 0 : 1];
  std::int64_t shape[] = {task->batch, task->new_rows, task->kv_heads, task->head_dim};
  TILEWISE_RETURN_IF_ERROR(
      read_tensor("k", request.k, rank, packed ? shape + 1 : shape, task->dtype, &task->k));
  shape[3] = task->value_dim;
  return read_tensor("v", request.v, rank, packed ? shape + 1 : shape, task->dtype, &task->v);
}

Status read_rotary(const tilewise_append& request, Append* task) {
  if (!present(request.rotary_cos)) return TILEWISE_OK;
  const tilewise_tensor& cos = request.rotary_cos;
  TILEWISE_RETURN_IF_ERROR(check_rank("rotary_cos", cos, 2, "(positions, R/2)"));
  task->positions = cos.shape[0];
  task->pairs = cos.shape[1];
  if (task->positions < 1 || 2 * task->pairs > task->head_dim) {
    return fail(
        TILEWISE_INVALID_ARGUMENT,
        "rotary_cos: shape is %s, must have at least 1 position and at most D / 2 = %lld pairs",
        shape_text(2, cos.shape).text, printable(task->head_dim / 2));
  }
  for (const bool is_cos : {true, false}) {
    const char* const name = is_cos ? "rotary_cos" : "rotary_sin";
    const tilewise_tensor& table = is_cos ? cos : request.rotary_sin;
    TILEWISE_RETURN_IF_ERROR(check_shape(name, table, 2, cos.shape, "that of rotary_cos"));
    TILEWISE_RETURN_IF_ERROR(check_dtype(name, table, TILEWISE_FP32, task->dtype));
    View& view = is_cos ? task->rotary_cos : task->rotary_sin;
    view = {table.data, table.dtype, 0, 0, stride_of(table, 0), stride_of(table, 1)};
  }
  if (!present(request.q)) return TILEWISE_OK;
  const bool packed = task->cu_seqlens_q.present();
  const int rank = packed ? 3 : 4;
  TILEWISE_RETURN_IF_ERROR(
      check_rank("q", request.q, rank, packed ? "(T, H, D) with cu_seqlens_q" : "(B, S, H, D)"));
  task->q_rows = request.q.shape[packed ? 0 : 1];
  task->heads = request.q.shape[packed ? 1 : 2];
  const std::int64_t shape[] = {task->batch, task->q_rows, task->heads, task->head_dim};
  const std::int64_t* const own = packed ? shape + 1 : shape;
  TILEWISE_RETURN_IF_ERROR(read_tensor("q", request.q, rank, own, task->dtype, &task->q));
  return read_tensor("q_rotated", request.q_rotated, rank, own, task->dtype, &task->q_rotated);
}

// ---- contents, which only the CPU can read ------------------------------------------------------

Status refuse_entry(const char* name, std::int64_t index, std::int64_t value, std::int64_t low,
                    std::int64_t high) {
  return fail(TILEWISE_INVALID_ARGUMENT, "%s[%lld]: is %lld, must be from %lld to %lld", name,
              printable(index), printable(value), printable(low), printable(high));
}

Status check_starts(const char* name, const IndexView& starts, std::int64_t batch,
                    std::int64_t tokens) {
  if (!starts.present()) return TILEWISE_OK;
  for (std::int64_t b = 0; b <= batch; ++b) {
    const std::int64_t low = b == 0 ? 0 : starts.at(b - 1);
    if (starts.at(b) < low || starts.at(b) > tokens)
      return refuse_entry(name, b, starts.at(b), low, tokens);
  }
  return TILEWISE_OK;
}

std::int64_t length_of(const IndexView& starts, std::int64_t rows, std::int64_t b) {
  return starts.present() ? starts.at(b + 1) - starts.at(b) : rows;
}

Status check_sequence(const Append& task, std::int64_t b) {
  const std::int64_t count = length_of(task.cu_seqlens_k, task.new_rows, b);
  const std::int64_t held = task.cache_seqlens.at(b);
  if (held < 0 || held > task.capacity - count)
    return refuse_entry("cache_seqlens", b, held, 0, task.capacity - count);
  if (task.cache_batch_idx.present()) {
    const std::int64_t row = task.cache_batch_idx.at(b);
    if (row < 0 || row >= task.cache_batch)
      return refuse_entry("cache_batch_idx", b, row, 0, task.cache_batch - 1);
  }
  const PageTable& table = task.page_table;
  for (std::int64_t n = held; table.present() && n < held + count; ++n) {
    const std::int64_t entry = table.data[b * table.batch + n / table.page_size * table.column];
    if (entry < 0 || entry >= table.pages)
      return refuse_entry("page_table", b * table.columns + n / table.page_size, entry, 0,
                          table.pages - 1);
  }
  if (task.pairs == 0) return TILEWISE_OK;
  const bool own = task.rotary_seqlens.present();
  const std::int64_t first = own ? task.rotary_seqlens.at(b) : held;
  const std::int64_t queries = length_of(task.cu_seqlens_q, task.q_rows, b);
  const std::int64_t rotated = math::max(count, task.q_at_end ? math::min(queries, 1) : queries);
  if (first >= 0 && first <= task.positions - rotated) return TILEWISE_OK;
  return refuse_entry(own ? "rotary_seqlens" : "cache_seqlens with rotary_cos", b, first, 0,
                      task.positions - rotated);
}

Status check_contents(const Append& task) {
  TILEWISE_RETURN_IF_ERROR(
      check_starts("cu_seqlens_k", task.cu_seqlens_k, task.batch, task.new_rows));
  TILEWISE_RETURN_IF_ERROR(
      check_starts("cu_seqlens_q", task.cu_seqlens_q, task.batch, task.q_rows));
  for (std::int64_t b = 0; b < task.batch; ++b) TILEWISE_RETURN_IF_ERROR(check_sequence(task, b));
  return TILEWISE_OK;
}

}  // namespace

Status make_append(const tilewise_append& request, Append* task) {
  TILEWISE_RETURN_IF_ERROR(check_presence(request));
  TILEWISE_RETURN_IF_ERROR(read_caches(request, task));
  TILEWISE_RETURN_IF_ERROR(read_lists(request, task));
  TILEWISE_RETURN_IF_ERROR(read_new_rows(request, task));
  TILEWISE_RETURN_IF_ERROR(read_rotary(request, task));
  task->interleaved = request.interleaved != 0;
  task->q_at_end = request.q_at_end != 0;
  const Checked rows = Checked{task->new_tokens()} * Checked{2 * task->kv_heads} +
                       Checked{task->q_tokens()} * Checked{task->heads};
  TILEWISE_RETURN_IF_ERROR(check_memory(request));
  if (!rows.valid) return fail(TILEWISE_INVALID_ARGUMENT, "k: has more than 2^63 rows");
  return task->device == TILEWISE_CPU ? check_contents(*task) : TILEWISE_OK;
}

}  // namespace tilewise::problem
