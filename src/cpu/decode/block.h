// A block of keys in decoding, and the scratch of a worker. A row is one query of one query head.
// The rows of all query heads of a kv head's group (GQA) are neighbours, head after head, so that K
// and V are read once for all of them.
#pragma once

#include "cpu/common/mask.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Keys of a block. 32 rows of K take 16 KB with 128 columns of fp32, and stay in the L1 while all
// rows of queries use them. Two registers of scores per row hide the latency of the shuffles for
// its maximum and sum.
inline constexpr int kDecodeKeys = 32;

template <class T>
struct DecodeScratch {
  T* queries;            // (rows, padded D)
  T* out;                // (rows, padded Dv)
  T* max;                // (rows)
  T* sum;                // (rows)
  T* rescale;            // (rows): the factor of the output so far, of one block
  T* query_unit;         // (rows): the power of two by which the queries are multiplied
  T* out_unit;           // (kv heads): the power of two by which V and the outputs are multiplied
  T* prob_unit;          // (rows): the power of two, at most 1, of the probs that meet V
  bool* has_prob_units;  // (1): whether some of them are below 1
  T* scores;             // (rows, kDecodeKeys)
  T* keep;               // (queries, kDecodeKeys), with dropout
  T* staged;             // (kDecodeKeys, the larger padded width)
  void* addresses;       // (kDecodeKeys) pointers to the rows of a block, in a paged cache
  std::uint8_t* at_phi;  // (rows): whether the anchor of the row is phi, in the place of its max
  MaskScratch<T> mask;
  std::uint8_t* seen;  // (rows, kDecodeKeys): see record_seen_keys()
  Band* bands;
  std::int64_t loaded = -1;  // the heads whose queries are loaded
};

// A block of keys of a work item. `rows` and `first_row` are those of one kv head.
struct DecodeBlock {
  HeadContext context;   // of the first query head
  std::int64_t group;    // GQA: query heads of one kv head
  std::int64_t queries;  // of the sequence
  std::int64_t first;    // key of the sequence
  std::int64_t keys;

  TILEWISE_INLINE std::int64_t rows() const { return group * queries; }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
