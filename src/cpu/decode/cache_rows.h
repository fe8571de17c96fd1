// The keys of a work item of decoding: where their rows lie, and how they are prefetched.
#pragma once

#include "cpu/decode/block.h"
#include "cpu/decode/paged_rows.h"
#include "cpu/decode/plan.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The heads and keys of a work item.
struct DecodeRange {
  HeadContext context;  // of the first query head
  DecodeHeads heads;    // kv_heads: those of this item
  math::KeyRange keys;
  const DecodeRange* following = nullptr;  // the item that is computed next, if it is known

  TILEWISE_INLINE std::int64_t rows_of_kv_head() const {
    return heads.group * context.sequence.q_len;
  }
  TILEWISE_INLINE std::int64_t rows() const { return heads.kv_heads * rows_of_kv_head(); }
};

// The address of a row of K or V, in a kv head of the item.
template <class S>
TILEWISE_INLINE const S* cache_row(const View& view, const DecodeRange& range,
                                   std::int64_t kv_number, std::int64_t key) {
  const Sequence& sequence = range.context.sequence;
  return static_cast<const S*>(view.data) +
         range.context.problem->key_offset(
             view, sequence.batch, range.context.kv_head() + kv_number, sequence.k_start + key);
}

// Rows of K or V of a block. In a paged cache they hold until the next call.
template <class S, bool kPaged, class T>
TILEWISE_INLINE typename CacheForm<S, kPaged>::Rows cache_rows(const View& view,
                                                               const DecodeRange& range,
                                                               const DecodeBlock& block,
                                                               std::int64_t kv_number,
                                                               const DecodeScratch<T>& scratch) {
  if constexpr (kPaged) {
    const S** const address = static_cast<const S**>(scratch.addresses);
    for (std::int64_t j = 0; j < block.keys; ++j)
      address[j] = cache_row<S>(view, range, kv_number, block.first + j);
    return {address};
  } else {
    return {cache_row<S>(view, range, kv_number, block.first), view.row};
  }
}

// Returns a prefetcher of `count` rows of all heads of the item, from `key` on, in `steps` steps.
template <class S, bool kPaged>
TILEWISE_INLINE auto cache_prefetcher(const View& view, const DecodeRange& range,
                                      std::int64_t width, std::int64_t key, std::int64_t count,
                                      std::int64_t steps) {
  constexpr std::int64_t kSize = sizeof(S);
  const std::int64_t heads = range.heads.kv_heads;
  const std::int64_t row_bytes = ((heads - 1) * view.head + width) * kSize;
  const std::int64_t rows = math::max(count, 0);
  typename CacheForm<S, kPaged>::Prefetch prefetcher;
  if (rows == 0 && kPaged) return prefetcher;  // there may be no page
  const S* const first = cache_row<S>(view, range, 0, rows > 0 ? key : 0);
  if constexpr (kPaged) {
    const PageTable& pages = range.context.problem->page_table;
    const PageWalk walk = {
        .pages = &pages,
        .heads = static_cast<const char*>(view.data) + range.context.kv_head() * view.head * kSize,
        .page_bytes = view.batch * kSize,
        .gap = view.row * kSize - row_bytes,
        .batch = range.context.sequence.batch,
        .key = key,
        .left_in_page = pages.page_size - pages.row_of(key)};
    prefetcher = {first, rows, row_bytes, walk};
  } else {
    prefetcher = {first, rows, row_bytes, view.row * kSize};
  }
  prefetcher.spread_over(steps);
  return prefetcher;
}

// Keys of a work item.
struct DecodeKeys {
  std::int64_t first;
  std::int64_t count;  // at most kDecodeKeys; 0: there are no more keys
};

// Returns the first block from `key` on of which some query sees a key. Blocks are multiples of
// kDecodeKeys after the first key of the range.
TILEWISE_INLINE DecodeKeys next_block(const DecodeRange& range, std::int64_t key) {
  if (range.context.index == nullptr)
    return {key, math::clamp(range.keys.end - key, 0, kDecodeKeys)};
  const math::KeyRange rest = {key, math::max(key, range.keys.end)};
  const math::KeyRange seen =
      next_visible_keys(range.context, {0, range.context.sequence.q_len}, rest, kDecodeKeys);
  const std::int64_t first = seen.begin / kDecodeKeys * kDecodeKeys;
  return {first, seen.begin < seen.end ? seen.end - first : 0};
}

// Returns a prefetcher of the rows of K of the next block of the range, or of the first one of the
// item that follows.
template <class S, bool kPaged>
TILEWISE_INLINE auto next_keys_prefetcher(const DecodeRange& range, DecodeKeys next,
                                          std::int64_t steps) {
  const Problem& problem = *range.context.problem;
  const bool last = next.count == 0 && range.following != nullptr;
  const DecodeRange& in = last ? *range.following : range;
  if (last) next = next_block(in, in.keys.begin);
  return cache_prefetcher<S, kPaged>(problem.k, in, problem.head_dim, next.first, next.count,
                                     steps);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
