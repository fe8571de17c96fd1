// The shared memory of a block.
#pragma once

#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/sm80/shared.cuh"
#include "math/softmax_state.h"

namespace tilewise::cuda::fp32 {

using WorkTile = sm80::WorkTileOf<float>;

// The keys of a tile that a thread's rows see, in place of probs: 1 for a visible key, else 0.
template <int kScores>
struct VisibleKeys {
  std::uint32_t bits;  // bit r stands for score r
  static_assert(kScores <= 32);

  VisibleKeys() = default;
  // A key with a score of -inf is masked.
  __device__ __forceinline__ explicit VisibleKeys(const float (&scores)[kScores]) : bits(0) {
#pragma unroll
    for (int r = 0; r < kScores; ++r)
      bits |= scores[r] == -math::Limits<float>::kInfinity ? 0 : 1u << r;
  }
  __device__ __forceinline__ float operator[](int r) const {
    return static_cast<float>(bits >> r & 1);
  }
};

template <KernelConfig kConfig>
struct Shared {
  // With 256 columns the main loop has no registers for the maxima of the rows.
  static constexpr bool kMaximaInShared = kConfig.columns == 256;

  alignas(16) float q[kConfig.q_tile() * kConfig.row()];
  float k[kConfig.k_tile * kConfig.row()];
  float v[kConfig.k_tile * kConfig.columns];
  float probs[kConfig.q_tile() * kConfig.chunk_row()];  // 16 rows for each warp
  WorkTile tile;
  sm80::MaskTable mask;
  float maxima[kMaximaInShared ? kConfig.q_tile() : 1];
  // Of each thread: the main loop has no register for it.
  VisibleKeys<kThreadRows * kConfig.thread_keys()> visible[kConfig.threads()];
  float prob_shift;  // s: probs are 2^-s times as large (sm80/large_values.cuh)
};

}  // namespace tilewise::cuda::fp32
