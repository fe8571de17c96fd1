// Prefetching of memory that a kernel reads soon.
#pragma once

#include "cpu/simd/vector.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Where the next row begins: here at the same distance from each row to the next.
struct EvenRows {
  std::int64_t gap = 0;  // bytes from the end of a row to the next one

  TILEWISE_INLINE const char* next(const char* end, std::int64_t) const { return end + gap; }
};

// Prefetches rows into the L2, cache line by cache line, in even shares over the steps of a
// computation. A burst of prefetches would fill the buffers that loads wait in, and between bursts
// the memory would be idle.
template <class Walk>
class RowPrefetcher {
 public:
  static constexpr std::int64_t kLine = 64;

  RowPrefetcher() = default;
  // `rows` rows of `bytes` bytes, the first at `base`. Nothing is prefetched before spread_over().
  TILEWISE_INLINE RowPrefetcher(const void* base, std::int64_t rows, std::int64_t bytes, Walk walk)
      : at_(static_cast<const char*>(base)),
        end_(at_ + bytes),
        rows_(rows),
        bytes_(bytes),
        walk_(walk) {}

  // Every step() prefetches one of `steps` equal shares, of whole lines on average.
  TILEWISE_INLINE void spread_over(std::int64_t steps) {
    const std::int64_t lines = rows_ * math::ceil_div(bytes_, kLine);
    rate_ = static_cast<int>((lines * kWhole + steps - 1) / math::max(steps, 1));
  }

  TILEWISE_INLINE void step() {
    for (share_ += rate_; share_ >= kWhole; share_ -= kWhole) {
      __builtin_prefetch(at_, 0, 2);  // into the L2
      at_ += kLine;
      if (at_ >= end_) next_row();
    }
  }

 private:
  static constexpr int kWhole = 1 << 10;  // one line

  TILEWISE_INLINE void next_row() {
    if (--rows_ <= 0) {
      rate_ = 0;
      share_ = kWhole;  // ends the loop of this step
    }
    at_ = walk_.next(end_, rows_);
    end_ = at_ + bytes_;
  }

  const char* at_ = nullptr;
  const char* end_ = nullptr;  // of the row
  std::int64_t rows_ = 0;
  std::int64_t bytes_ = 0;
  Walk walk_;
  int rate_ = 0;   // lines of a step, times kWhole
  int share_ = 0;  // what is left of a line from the steps before
};

// Rows `stride` bytes apart.
class Prefetcher : public RowPrefetcher<EvenRows> {
 public:
  Prefetcher() = default;
  TILEWISE_INLINE Prefetcher(const void* base, std::int64_t rows, std::int64_t bytes,
                             std::int64_t stride)
      : RowPrefetcher(base, rows, bytes, EvenRows{stride - bytes}) {}
};

// Rows that are read once are prefetched so many rows ahead, between products: rows of one head lie
// apart, and the hardware prefetches none of them before it is touched. Memory takes longer than a
// few rows, and more than 16 lines at a time wait for each other.
inline constexpr std::int64_t kPrefetchRows = 8;

// The rows of a shorter sequence mostly lie in the L2, where prefetching brings nothing.
inline constexpr std::int64_t kFarRows = 512;

// Prefetches `bytes` bytes of a row into the L1. The row starts `offset` bytes after `from`, which
// may be after the end of the tensor.
TILEWISE_INLINE void prefetch_row(const void* from, std::int64_t offset, std::int64_t bytes) {
  const char* const row = static_cast<const char*>(from) + offset;
  for (std::int64_t at = 0; at < bytes; at += Prefetcher::kLine) __builtin_prefetch(row + at, 0, 3);
}
// Prefetches a line that is to be written.
TILEWISE_INLINE void prefetch_to_write(const void* line) { __builtin_prefetch(line, 1, 3); }

// Prefetches the row that comes kPrefetchRows rows later.
//
// stride, width: in elements
template <class S>
TILEWISE_INLINE void prefetch_later_row(const S* row, std::int64_t stride, std::int64_t width) {
  constexpr std::int64_t kSize = sizeof(S);
  prefetch_row(row, kPrefetchRows * stride * kSize, width * kSize);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
