// Block.
#pragma once

#include "cpu/common/mask.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Keys of a block: 16 KB of K at 128 fp32 columns, which stay in the L1 while all rows pass; two
// registers of scores to a row hide the shuffles of its maximum and sum.
inline constexpr int kDecodeKeys = 32;

template <class T>
struct DecodeScratch {
  T* queries;  // (rows, padded D)
  T* out;      // (rows, padded Dv)
  T* max;      // (rows)
  T* sum;      // (rows)
  T* rescale;  // (rows): of a block
  T* scores;   // (rows, kDecodeKeys)
  T* keep;     // (queries, kDecodeKeys), with dropout
  T* staged;   // (kDecodeKeys, the larger padded width)
  MaskScratch<T> mask;
  std::uint8_t* seen;  // (rows, kDecodeKeys): see record_seen()
  Band* bands;
  std::int64_t loaded = -1;  // whose queries are there
};

// A block of keys of an item. `rows` and `first_row` are those of one kv head.
struct DecodeBlock {
  HeadContext context;   // of the first query head
  std::int64_t group;    // query heads of a kv head
  std::int64_t queries;  // of the sequence
  std::int64_t first;    // key of the sequence
  std::int64_t keys;
  bool slow_path;

  TILEWISE_INLINE std::int64_t rows() const { return group * queries; }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
