// An append to a cache in the one form that every device reads, and its validation.
#pragma once

#include <tilewise/tilewise_append.h>

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

struct Append {
  std::int32_t device = TILEWISE_CPU;
  std::int32_t device_index = 0;
  std::int32_t dtype = 0;
  View k_cache, v_cache;        // (row of the cache or page, head, key)
  View k, v, q, q_rotated;      // (batch, head, row)
  View rotary_cos, rotary_sin;  // (position: row, pair: column)
  IndexView cu_seqlens_k, cu_seqlens_q;
  IndexView cache_seqlens, cache_batch_idx, rotary_seqlens;
  PageTable page_table;
  std::int64_t batch = 0;        // B
  std::int64_t cache_batch = 0;  // N
  std::int64_t capacity = 0;     // keys of a sequence that the cache has room for
  std::int64_t new_rows = 0;     // of each sequence, or T
  std::int64_t q_rows = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t positions = 0;  // of rotary_cos
  std::int64_t pairs = 0;      // that are rotated, R / 2; 0: none
  bool interleaved = false;
  bool q_at_end = false;

  TILEWISE_INLINE std::int64_t new_tokens() const {
    return cu_seqlens_k.present() ? new_rows : batch * new_rows;
  }
  TILEWISE_INLINE std::int64_t q_tokens() const {
    return cu_seqlens_q.present() ? q_rows : batch * q_rows;
  }
  // Rows that are written: of K, of V, of q.
  TILEWISE_INLINE std::int64_t rows() const {
    return 2 * new_tokens() * kv_heads + q_tokens() * heads;
  }
};

// Checks a request and fills `task`. Reads the contents of lists on the CPU, and checks them.
Status make_append(const tilewise_append& request, Append* task);

}  // namespace tilewise::problem
