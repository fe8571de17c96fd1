// The second operands of both products, loaded from tiles of K and V in shared memory, and the
// columns of out that follow from their order.
//
// K and V of fp8 stay 8 bits wide in shared memory. ldmatrix moves pairs of their numbers as if
// these were numbers of 16 bits, and registers are converted to fp16, which is exact.
//
//   K: a lane (t: lane % 4) receives columns 4 t to 4 t + 3 of each 16. As an operand they count as
//      columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, and Q is stored in the same order
//      (fp8/queries.cuh): a sum over columns does not depend on their order.
//   V: ldmatrix.trans gives a lane columns 2 c and 2 c + 1 (c: lane / 4) of two keys in a register.
//      Two operands are made of it, one with all even columns and one with all odd ones. So a lane
//      ends with columns 4 t to 4 t + 3 of each 16 columns of out, as it does in fp32
//      (fp32/gemm.cuh).
#pragma once

#include "cuda/decode/kernel_config.h"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
struct KeyOperands {
  static constexpr int kSteps = kConfig.fp8 ? 2 : 1;  // of 16 columns that one ldmatrix loads
  static constexpr int kTileColumns = kConfig.row_bytes() / 2;

  // 16 keys of load number `load` of K. `first`: the lane's address for the keys' load 0
  __device__ __forceinline__ static void load_k(std::uint32_t first, int load,
                                                std::uint32_t (&b)[kSteps][4]) {
    const std::uint32_t address = tile::step_address<kTileColumns>(first, load);
    if constexpr (!kConfig.fp8) {
      ptx::ldmatrix_x4(b[0], address);
    } else {
      std::uint32_t numbers[4];  // of 8 keys: two steps; of the next 8 keys: two steps
      ptx::ldmatrix_x4(numbers, address);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t* const operand = &b[i % 2][i / 2 * 2];
        convert(numbers[i], kNeighbours, operand[0], operand[1]);
      }
    }
  }

  // 16 keys of load number `load` of V. `first`: the lane's address for its load 0
  __device__ __forceinline__ static void load_v(std::uint32_t first, int load,
                                                std::uint32_t (&b)[kSteps][4]) {
    const std::uint32_t address = tile::step_address<kTileColumns>(first, load);
    if constexpr (!kConfig.fp8) {
      ptx::ldmatrix_x4_trans(b[0], address);
    } else {
      std::uint32_t numbers[4];  // of 16 columns: 8 keys, the next 8 keys; of the next 16 columns
      ptx::ldmatrix_x4_trans(numbers, address);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t* const operand = &b[i / 2][i % 2];
        convert(numbers[i], kAlternating, operand[0], operand[2]);
      }
    }
  }

  // Pair `pair` of a lane's numbers of out belongs to its row pair % 2. The first of the pair's two
  // columns, and the registers of both.
  __device__ __forceinline__ static int out_column(int pair, int lane) {
    if constexpr (!kConfig.fp8 && !kConfig.fp32) return pair / 2 * 8 + tile::lane_column(lane);
    return pair / 4 * 16 + lane % tile::kLanesPerRow * 4 + pair / 2 % 2 * 2;
  }
  __device__ __forceinline__ static constexpr int out_register(int pair, int i) {
    if constexpr (!kConfig.fp8) return 2 * pair + i;
    return pair / 4 * 8 + pair % 2 * 2 + pair / 2 % 2 + 4 * i;
  }

 private:
  // The pairs that the four numbers of a word form: (0, 1) and (2, 3), or (0, 2) and (1, 3).
  enum Order { kNeighbours, kAlternating };

  // Converts four numbers of fp8 to two pairs of fp16.
  __device__ __forceinline__ static void convert(std::uint32_t numbers, Order order,
                                                 std::uint32_t& first, std::uint32_t& second) {
    if constexpr (kConfig.e5m2) {  // an e5m2 is the upper byte of an fp16; byte 4 is zero
      first = ptx::permute_bytes(numbers, 0, order == kNeighbours ? 0x1404 : 0x2404);
      second = ptx::permute_bytes(numbers, 0, order == kNeighbours ? 0x3424 : 0x3414);
    } else {
      if (order == kAlternating) numbers = ptx::permute_bytes(numbers, 0, 0x3120);
      ptx::e4m3_to_fp16(numbers, first, second);
    }
  }
};

}  // namespace tilewise::cuda::decode
