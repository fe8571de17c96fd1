// The two products of attention on fragments of mma.m16n8k16: S = Q K^T and O += P V.
#pragma once

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/cp_async_tile.cuh"
#include "cuda/sm80/mask_table.cuh"
#include "cuda/sm80/warp_pair.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/ldmatrix_tile.h"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm80 {

// The state of a warp: its rows of O and their softmax states, and where its operands lie. A warp
// computes kRowBlocks blocks of 16 rows. A pair of warps shares the rows; each computes the scores
// of half of the keys, and half of the columns of O.
template <KernelConfig kConfig>
class Gemm {
 public:
  static constexpr int kRowBlocks = kConfig.row_blocks;
  static constexpr bool kPaired = kConfig.paired;
  static constexpr int kKeys = kConfig.k_tile / kConfig.pair_size();  // of the warp's scores
  static constexpr int kScores = kKeys / 2;                           // registers of a row block
  static constexpr int kOut = kConfig.columns / 2 / kConfig.pair_size();
  static constexpr int kSteps = kConfig.columns / 16;             // of Q K^T
  static constexpr int kKeySteps = kKeys / 16;                    // of P V
  static constexpr int kOutSteps = kSteps / kConfig.pair_size();  // of 16 columns of O
  using Layout = tile::LdmatrixTile<kConfig.columns>;
  static_assert(!kPaired || (kRowBlocks == 2 && kConfig.columns % 128 == 0 && !kConfig.score_mod),
                "Half of the columns are whole groups of chunks.");

  __device__ Gemm(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(ptx::opaque(shared)),
        tile_(shared_.tile),
        mask_(parameters, tile_, shared_.mask),
        k_operand_(ptx::opaque(ptx::shared_address(shared_.k[0]) + second_operand_offset() +
                               first_key_offset())),
        v_operand_(ptx::opaque(ptx::shared_address(shared_.v[0]) + first_operand_offset() +
                               first_key_offset() + pair_index<kConfig>() * kOut * 4)) {}

 protected:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      states_[row_block].clear();
#pragma unroll
      for (float& x : out_[row_block]) x = 0;
    }
  }

  __device__ __forceinline__ void load_k(std::int32_t key_tile, int stage) {
    load_tile<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        tile_.k, key_tile * kConfig.k_tile, shared_.k[stage]);
  }
  __device__ __forceinline__ void load_v(std::int32_t key_tile, int stage) {
    load_tile<kConfig.k_tile, kConfig.columns, kConfig.threads()>(
        tile_.v, key_tile * kConfig.k_tile, shared_.v[stage]);
  }

  // The offset of the row that the lane passes to ldmatrix, for the first and for the second
  // operand of a product.
  __device__ __forceinline__ static std::int32_t first_operand_offset(
      std::uint32_t thread = threadIdx.x) {
    const int lane = static_cast<int>(thread % 32);
    return Layout::place(tile::lane_row_first(lane), tile::lane_chunk_first(lane));
  }
  __device__ __forceinline__ static std::int32_t second_operand_offset() {
    const int lane = threadIdx.x % 32;
    return Layout::place(tile::lane_row_second(lane), tile::lane_chunk_second(lane));
  }
  // Bytes from the first key of a tile to the warp's first key.
  __device__ __forceinline__ static std::int32_t first_key_offset() {
    return pair_index<kConfig>() * kKeys * Layout::kRowBytes;
  }

  // Bytes from the warp's first key to its partner's.
  __device__ __forceinline__ static std::int32_t partner_key_offset() {
    return (pair_index<kConfig>() == 0 ? 1 : -1) * kKeys * Layout::kRowBytes;
  }

  __device__ __forceinline__ std::uint32_t q_operand() {
    // Computed for each tile of keys where the loops have no register for it.
    const std::uint32_t thread = kPaired ? ptx::opaque(threadIdx.x) : threadIdx.x;
    return ptx::shared_address(shared_.q) + warp_row<kConfig>() * Layout::kRowBytes +
           first_operand_offset(thread);
  }
  __device__ __forceinline__ void load_q_operand(std::uint32_t start, int step, int row_block,
                                                 std::uint32_t (&a)[4]) {
    ptx::ldmatrix_x4(
        a, tile::step_address<kConfig.columns>(start, step) + row_block * 16 * Layout::kRowBytes);
  }

  // S = Q K^T
  __device__ __forceinline__ void multiply_qk(int stage, float (&scores)[kRowBlocks][kScores]) {
    const std::uint32_t start = k_operand_ + stage * kConfig.k_bytes();
    const std::uint32_t queries = q_operand();
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
      for (float& x : scores[row_block]) x = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[kRowBlocks][4];
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        if constexpr (kConfig.q_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[row_block][i] = q_[step][row_block][i];
        } else {
          load_q_operand(queries, step, row_block, a[row_block]);
        }
      }
#pragma unroll
      for (int n = 0; n < kKeySteps; ++n) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(
            b, tile::step_address<kConfig.columns>(start, step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
          float* const s = scores[row_block];
          ptx::mma_m16n8k16<kConfig.fp16>(&s[8 * n], a[row_block], b[0], b[1]);
          ptx::mma_m16n8k16<kConfig.fp16>(&s[8 * n + 4], a[row_block], b[2], b[3]);
        }
      }
    }
  }

  // The address of the lane's operands of V in a stage.
  __device__ __forceinline__ std::uint32_t v_operand(int stage) {
    return v_operand_ + stage * kConfig.k_bytes();
  }

  // O += P V for keys 16 step to 16 step + 15 and columns 16 n to 16 n + 15.
  //   probs (kRowBlocks, 4), its rows `stride` registers apart
  __device__ __forceinline__ void multiply_pv_step(std::uint32_t start, int step, int n,
                                                   const std::uint32_t* probs, int stride) {
    std::uint32_t b[4];
    ptx::ldmatrix_x4_trans(
        b, tile::step_address<kConfig.columns>(start, n) + step * 16 * Layout::kRowBytes);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      const std::uint32_t* const a = probs + row_block * stride;
      ptx::mma_m16n8k16<kConfig.fp16>(&out_[row_block][8 * n], a, b[0], b[1]);
      ptx::mma_m16n8k16<kConfig.fp16>(&out_[row_block][8 * n + 4], a, b[2], b[3]);
    }
  }

  // O += P V
  __device__ __forceinline__ void multiply_pv(
      int stage, const std::uint32_t (&probs)[kRowBlocks][kScores / 2]) {
    const std::uint32_t start = v_operand(stage);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        multiply_pv_step(start, step, n, &probs[0][4 * step], kScores / 2);
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  Mask<kConfig.k_tile> mask_;
  std::uint32_t k_operand_;  // addresses of the lane's operands in the first stages of K and V
  std::uint32_t v_operand_;
  std::uint32_t q_[kConfig.q_registers ? kSteps : 1][kRowBlocks][4];
  float out_[kRowBlocks][kOut];
  tile::RowStates states_[kRowBlocks];
};

}  // namespace tilewise::cuda::sm80
