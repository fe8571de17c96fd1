// Rows of K and V of a paged cache, as decoding reads them: a page is looked up for every key of a
// block.
#pragma once

#include "cpu/simd/gemm.h"
#include "cpu/simd/prefetch.h"
#include "problem/problem.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The rows of a block of keys at addresses of their own.
template <class S>
struct PagedRows {
  using Number = S;
  const S* const* address;  // (keys)
  std::int64_t column = 0;

  TILEWISE_INLINE const S* operator[](std::int64_t r) const { return address[r] + column; }
  TILEWISE_INLINE PagedRows from_column(std::int64_t c) const { return {address, column + c}; }
};

// The way of a prefetcher through the rows of one sequence.
struct PageWalk {
  const problem::PageTable* pages = nullptr;
  const char* heads = nullptr;    // row 0 of page 0, of the first head
  std::int64_t page_bytes = 0;    // from one page to the next
  std::int64_t gap = 0;           // bytes from the end of a row to the next one of its page
  std::int64_t batch = 0;         // the sequence
  std::int64_t key = 0;           // of the row
  std::int64_t left_in_page = 0;  // rows, with this one

  // rows_left: rows with the next one; the table is not read after the last
  TILEWISE_INLINE const char* next(const char* end, std::int64_t rows_left) {
    ++key;
    if (--left_in_page > 0 || rows_left <= 0) return end + gap;
    left_in_page = pages->page_size;
    return heads + pages->page_of(batch, key) * page_bytes;
  }
};
using PagePrefetcher = RowPrefetcher<PageWalk>;

// The form in which a kernel reads the rows of a cache, and how it prefetches them.
template <class S, bool kPaged>
struct CacheForm {
  using Rows = tilewise::cpu::TILEWISE_TARGET::Rows<S>;
  using Prefetch = Prefetcher;
};
template <class S>
struct CacheForm<S, true> {
  using Rows = PagedRows<S>;
  using Prefetch = PagePrefetcher;
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
