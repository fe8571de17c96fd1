// Prefetching.
#pragma once

#include "cpu/simd/vector.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Lines of memory that will be needed soon, asked for a few at a time while a product runs: a burst
// would fill the buffers that loads wait in.
class Prefetcher {
 public:
  static constexpr std::int64_t kLine = 64;

  Prefetcher() = default;
  // `rows` rows of `bytes` bytes, `stride` bytes apart.
  TILEWISE_INLINE Prefetcher(const void* base, std::int64_t rows, std::int64_t bytes,
                             std::int64_t stride)
      : row_(static_cast<const char*>(base)), rows_(rows), bytes_(bytes), stride_(stride) {}

  // Every prefetch_share() asks for one of `shares` equal parts.
  TILEWISE_INLINE void spread_over(std::int64_t shares) {
    const std::int64_t lines = rows_ * (math::ceil_div(bytes_, kLine));
    share_ = static_cast<int>(math::ceil_div(lines, shares));
  }
  TILEWISE_INLINE void prefetch_share() { prefetch(share_); }

  // Asks for the next `lines` lines, if there are any left.
  TILEWISE_INLINE void prefetch(int lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);  // into the L2
      at_ += kLine;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  const char* row_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t stride_ = 0;
  std::int64_t at_ = 0;
  int share_ = 0;
};

// Rows of one head lie apart, and nothing asks for one before it is touched: how far ahead those
// that are read once are asked for, between products. Memory takes longer than a few rows, and more
// than 16 lines at a time wait for each other.
inline constexpr std::int64_t kPrefetchRows = 8;

// Asks for `bytes` bytes of a row, `offset` bytes after `from`: it may lie beyond the tensor.
TILEWISE_INLINE void prefetch_row(const void* from, std::int64_t offset, std::int64_t bytes) {
  const char* const row = static_cast<const char*>(from) + offset;
  for (std::int64_t at = 0; at < bytes; at += Prefetcher::kLine) __builtin_prefetch(row + at, 0, 3);
}
// The row that comes kPrefetchRows rows later.  stride, width: elements
template <class S>
TILEWISE_INLINE void prefetch_later_row(const S* row, std::int64_t stride, std::int64_t width) {
  constexpr std::int64_t kSize = sizeof(S);
  prefetch_row(row, kPrefetchRows * stride * kSize, width * kSize);
}

// Rows of a later block, asked for line by line while this one is computed: in even shares, also
// where no row is read. Lines that are asked for in bunches wait for each other, and the memory
// waits for whoever does not ask.
class StreamPrefetcher {
 public:
  // `rows` rows of `bytes` bytes, `stride` bytes apart, in `steps` steps.
  TILEWISE_INLINE StreamPrefetcher(const void* first, std::int64_t rows, std::int64_t bytes,
                                   std::int64_t stride, std::int64_t steps)
      : at_(static_cast<const char*>(first)),
        end_(at_ + bytes),
        rows_(rows),
        bytes_(bytes),
        gap_(stride - bytes) {
    const std::int64_t lines = rows * (math::ceil_div(bytes, Prefetcher::kLine));
    rate_ = static_cast<int>((lines * kWhole + steps - 1) / math::max(steps, 1));
  }

  TILEWISE_INLINE void step() {
    for (share_ += rate_; share_ >= kWhole; share_ -= kWhole) {
      __builtin_prefetch(at_, 0, 2);  // into the L2
      at_ += Prefetcher::kLine;
      if (at_ >= end_) next_row();
    }
  }

 private:
  static constexpr int kWhole = 1 << 10;  // a line

  TILEWISE_INLINE void next_row() {
    if (--rows_ <= 0) {
      rate_ = 0;
      share_ = kWhole;  // and no more in this step
    }
    at_ = end_ + gap_;
    end_ = at_ + bytes_;
  }

  const char* at_;
  const char* end_;  // of the row
  std::int64_t rows_;
  std::int64_t bytes_;
  std::int64_t gap_;  // from one row to the next
  int rate_;          // lines of a step
  int share_ = 0;     // of a line: what is left from the steps before
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
