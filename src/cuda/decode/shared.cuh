// The shared memory of a block that decodes.
#pragma once

#include "cuda/decode/kernel_config.h"
#include "cuda/decode/segment_rows.cuh"
#include "cuda/decode/work.cuh"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
struct Shared {
  unsigned char q[kConfig.q_parts()][kConfig.q_bytes()];
  // The tiles of K and V of each group. Later the rows of out of each group (merge.cuh).
  unsigned char ring[kConfig.groups()][kConfig.slots][kConfig.tile_bytes()];
  RowState states[kConfig.groups()][kConfig.rows()];
  bool votes[kWarps];     // of the warps (KeyRing::any_of_group)
  std::int32_t end_unit;  // of the block's share
  Segment segment;
  SegmentRow rows[kConfig.rows()];
  float row_scales[kConfig.fp8 ? kConfig.rows() : 1];  // of the products of a row of Q
  SearchBuffers<kConfig.threads()> search;

  static constexpr int kOutBytes = kConfig.groups() * kConfig.rows() * kConfig.columns * 4;
  static_assert(kOutBytes <= sizeof(ring), "The rows of out of all groups fit the ring.");
};

}  // namespace tilewise::cuda::decode
