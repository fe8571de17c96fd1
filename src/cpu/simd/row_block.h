// Blocks of rows of a tensor, and where the rows lie.
#pragma once

#include "cpu/simd/prefetch.h"
#include "math/integer.h"
#include "problem/problem.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::PageTable;
using problem::View;

// `count` rows of `width` numbers of a view, from row `first` of (batch, head) on. Rows of K and V
// of a paged cache are looked up in its table.
struct RowBlock {
  const View* view;
  std::int64_t batch;
  std::int64_t head;
  std::int64_t first;
  std::int64_t count;
  std::int64_t width;
  const PageTable* pages = nullptr;  // nullptr: the view has no pages

  // Whether each row lies a stride after the one before it: they are in one page.
  TILEWISE_INLINE bool evenly_spaced() const {
    return pages == nullptr || pages->row_of(first) + count <= pages->page_size;
  }
};

// The table of k and v, as RowBlock has it.
TILEWISE_INLINE const PageTable* pages_of(const problem::Problem& problem) {
  return problem.page_table.present() ? &problem.page_table : nullptr;
}

// The addresses of the rows of a block, whose numbers are of type S.
template <class S>
class RowAddresses {
 public:
  TILEWISE_INLINE explicit RowAddresses(const RowBlock& rows)
      : base_(static_cast<S*>(rows.view->data)), stride_(rows.view->row), rows_(rows) {
    if (rows.pages == nullptr) base_ += rows.view->offset(rows.batch, rows.head, rows.first);
  }
  TILEWISE_INLINE S* operator[](std::int64_t r) const {
    if (rows_.pages == nullptr) return base_ + r * stride_;
    const std::int64_t key = rows_.first + r;
    return base_ + rows_.view->offset(rows_.pages->page_of(rows_.batch, key), rows_.head,
                                      rows_.pages->row_of(key));
  }

 private:
  S* base_;
  std::int64_t stride_;
  const RowBlock& rows_;
};

// Prefetches the rows; of a paged cache those of the first page.
TILEWISE_INLINE Prefetcher prefetcher_of(const RowBlock& rows) {
  const std::int64_t size = problem::dtype_size(rows.view->dtype);
  std::int64_t count = rows.count;
  std::int64_t offset = 0;
  if (rows.pages == nullptr) {
    offset = rows.view->offset(rows.batch, rows.head, rows.first);
  } else if (count > 0) {
    const std::int64_t row = rows.pages->row_of(rows.first);
    count = math::min(count, rows.pages->page_size - row);
    offset = rows.view->offset(rows.pages->page_of(rows.batch, rows.first), rows.head, row);
  }
  return Prefetcher(static_cast<const char*>(rows.view->data) + offset * size, count,
                    rows.width * size, rows.view->row * size);
}

// Prefetches the row of a block that comes kPrefetchRows rows after row r.
template <class S>
TILEWISE_INLINE void prefetch_later_row(const RowBlock& rows, const RowAddresses<S>& address,
                                        std::int64_t r) {
  if (rows.pages == nullptr) return prefetch_later_row(address[r], rows.view->row, rows.width);
  if (r + kPrefetchRows < rows.count)
    prefetch_row(address[r + kPrefetchRows], 0, rows.width * static_cast<std::int64_t>(sizeof(S)));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
