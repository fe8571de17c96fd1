// The two products of attention on fragments of mma.m16n8k16, of a warp and a tile of keys.
#pragma once

#include "cuda/decode/key_operands.cuh"
#include "cuda/decode/masked_values.cuh"
#include "cuda/ptx/mma.cuh"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
struct Gemm {
  using Operands = KeyOperands<kConfig>;
  static constexpr int kSteps = kConfig.columns / 16;
  static constexpr int kKeySteps = kConfig.keys / 16;
  static constexpr int kLoadSteps = Operands::kSteps;  // of 16 columns that one load has
  // Operands that are loaded ahead take registers, of which wide rows of out leave few, and so do
  // the scores of many keys beside the product of a tile.
  static constexpr bool kFewRegisters =
      kConfig.columns == 256 || (kConfig.fp8 && kConfig.keys > 32);
  static constexpr int kUnrolledSteps = kFewRegisters ? 4 : kSteps;

  // scores += Q K^T. The lane's addresses for the first operands.
  __device__ __forceinline__ static void add_qk(std::uint32_t first_q, std::uint32_t first_k,
                                                float (&scores)[8 * kKeySteps]) {
    constexpr int kLoads = kSteps / kLoadSteps;
#pragma unroll(kUnrolledSteps / kLoadSteps)
    for (int load = 0; load < kLoads; ++load) {
      std::uint32_t a[kLoadSteps][4];
#pragma unroll
      for (int i = 0; i < kLoadSteps; ++i) {
        ptx::ldmatrix_x4(a[i], tile::step_address<kConfig.columns>(first_q, load * kLoadSteps + i));
      }
#pragma unroll
      for (int n = 0; n < kKeySteps; ++n) {
        std::uint32_t b[kLoadSteps][4];
        Operands::load_k(first_k + n * 16 * kConfig.row_bytes(), load, b);
#pragma unroll
        for (int i = 0; i < kLoadSteps; ++i) {
          ptx::mma_m16n8k16<kConfig.fp16>(&scores[8 * n], a[i], b[i][0], b[i][1]);
          ptx::mma_m16n8k16<kConfig.fp16>(&scores[8 * n + 4], a[i], b[i][2], b[i][3]);
        }
      }
    }
  }

  // sum += P V for 16 keys and the columns of a load. What non-finite elements of V add goes to
  // `out`, which has the same columns.
  template <bool kHidesKeys>
  __device__ __forceinline__ static void add_pv(std::uint32_t first, int step, int load,
                                                const std::uint32_t (&probs)[4 * kKeySteps],
                                                const std::uint32_t (&visible)[tile::kRowsPerLane],
                                                float* sum, float* out) {
    std::uint32_t b[kLoadSteps][4];
    Operands::load_v(first + step * 16 * kConfig.row_bytes(), load, b);
#pragma unroll
    for (int i = 0; i < kLoadSteps; ++i) {
      if constexpr (kHidesKeys) {
        if (__any_sync(~0u, has_non_finite<kConfig.fp16>(b[i]))) {
          add_non_finite<kConfig.fp16>(visible, step, b[i], out + 8 * i);
          zero_non_finite<kConfig.fp16>(b[i]);
        }
      }
      ptx::mma_m16n8k16<kConfig.fp16>(sum + 8 * i, &probs[4 * step], b[i][0], b[i][1]);
      ptx::mma_m16n8k16<kConfig.fp16>(sum + 8 * i + 4, &probs[4 * step], b[i][2], b[i][3]);
    }
  }
};

}  // namespace tilewise::cuda::decode
