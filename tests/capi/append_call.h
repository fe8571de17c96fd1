// A random append to a cache with its tensors, for the tests on the CPU and on devices.
#pragma once

#include <tilewise/tilewise_append.h>

#include <cstring>
#include <vector>

#include "registry/support.h"

namespace tilewise::tests {

struct AppendCase {
  std::int32_t dtype = TILEWISE_BF16;
  bool packed = false;
  std::int64_t page_size = 0;  // 0: the cache has no pages
  bool chosen_rows = false;    // cache_batch_idx
  std::int64_t pairs = 6;      // 0: no rotation
  bool interleaved = false;
  bool q_at_end = false;
  bool own_positions = false;  // rotary_seqlens
  bool fp32_tables = true;
};

// All cases differ in something; the lists lead to unequal lengths.
inline std::vector<AppendCase> append_cases() {
  std::vector<AppendCase> cases;
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    for (int i = 0; i < 16; ++i) {
      AppendCase c = {dtype, i % 2 != 0, i % 3 * std::int64_t{3}, false, i % 5 == 4 ? 0 : 6};
      c.chosen_rows = c.page_size == 0 && i % 4 > 1;
      c.interleaved = i / 2 % 2 != 0;
      c.q_at_end = i / 4 % 2 != 0;
      c.own_positions = i / 8 % 2 != 0;
      c.fp32_tables = i % 3 != 1;
      cases.push_back(c);
    }
  }
  return cases;
}

class AppendCall {
 public:
  static constexpr std::int64_t kBatch = 3, kRows = 3, kHeads = 4, kKvHeads = 2, kD = 14, kDv = 9,
                                kCacheRows = 20, kPositions = 64;

  AppendCall(const AppendCase& c, std::uint64_t seed) : case_(c), random_(seed) {
    tilewise_append_init(&call);
    call.interleaved = c.interleaved ? 1 : 0;
    call.q_at_end = c.q_at_end ? 1 : 0;
    const std::int64_t cache_batch = c.page_size > 0 ? 30 : 5;
    const std::int64_t cache_rows = c.page_size > 0 ? c.page_size : kCacheRows;
    add(&call.k_cache, c.dtype, {cache_batch, cache_rows, kKvHeads, kD});
    add(&call.v_cache, c.dtype, {cache_batch, cache_rows, kKvHeads, kDv});
    if (c.packed) {
      add(&call.k, c.dtype, {6, kKvHeads, kD});
      add(&call.v, c.dtype, {6, kKvHeads, kDv});
      add_list(&call.cu_seqlens_k, TILEWISE_INT32, {0, 3, 3, 5});  // the last token is nobody's
    } else {
      add(&call.k, c.dtype, {kBatch, kRows, kKvHeads, kD});
      add(&call.v, c.dtype, {kBatch, kRows, kKvHeads, kDv});
    }
    add_list(&call.cache_seqlens, TILEWISE_INT32, {2, 7, 4});
    if (c.chosen_rows) add_list(&call.cache_batch_idx, TILEWISE_INT64, {4, 0, 2});
    if (c.page_size > 0) {
      const std::int64_t pages = 20 / c.page_size;
      std::vector<std::int64_t> entries;
      for (std::int64_t i = 0; i < kBatch * pages; ++i) entries.push_back(29 - i * 7 % 30);
      add_list(&call.page_table, TILEWISE_INT32, entries);
      call.page_table.rank = 2;
      call.page_table.shape[0] = kBatch;
      call.page_table.shape[1] = call.page_table.strides[0] = pages;
      call.page_table.strides[1] = 1;
    }
    if (c.pairs == 0) return;
    const std::int32_t table = c.fp32_tables ? +TILEWISE_FP32 : c.dtype;
    add(&call.rotary_cos, table, {kPositions, c.pairs});
    add(&call.rotary_sin, table, {kPositions, c.pairs});
    if (c.own_positions) add_list(&call.rotary_seqlens, TILEWISE_INT64, {0, 30, 11});
    if (c.packed) {
      add(&call.q, c.dtype, {7, kHeads, kD});
      add(&call.q_rotated, c.dtype, {7, kHeads, kD});
      add_list(&call.cu_seqlens_q, TILEWISE_INT64, {0, 1, 4, 7});
    } else {
      add(&call.q, c.dtype, {kBatch, kRows, kHeads, kD});
      call.q_rotated = call.q;
    }
  }

  const AppendCase& description() const { return case_; }
  // Every tensor, with its memory.
  struct Memory {
    tilewise_tensor* tensor;
    std::vector<std::byte> bytes;
  };
  std::vector<Memory>& memories() { return memories_; }

  tilewise_append call;

 private:
  void add(tilewise_tensor* tensor, std::int32_t dtype, const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    memories_.push_back({tensor, std::vector<std::byte>(static_cast<std::size_t>(
                                     count * problem::dtype_size(dtype)))});
    *tensor = tilewise_contiguous(memories_.back().bytes.data(), dtype,
                                  static_cast<std::int32_t>(shape.size()), shape.data());
    set_elements(*tensor, [&](std::int64_t) { return random_.normal(); });
  }
  void add_list(tilewise_tensor* tensor, std::int32_t dtype,
                const std::vector<std::int64_t>& numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    memories_.push_back({tensor, std::vector<std::byte>(static_cast<std::size_t>(
                                     count * problem::dtype_size(dtype)))});
    *tensor = tilewise_contiguous(memories_.back().bytes.data(), dtype, 1, &count);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (dtype == TILEWISE_INT64) {
        static_cast<std::int64_t*>(tensor->data)[i] = numbers[i];
      } else {
        static_cast<std::int32_t*>(tensor->data)[i] = static_cast<std::int32_t>(numbers[i]);
      }
    }
  }

  AppendCase case_;
  Random random_;
  std::vector<Memory> memories_;
};

}  // namespace tilewise::tests
