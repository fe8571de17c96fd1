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
        k_offset_(ptx::opaque(start_of_offsets(shared_.k[0]) + second_operand_offset() +
                              first_key_offset())),
        v_offset_(ptx::opaque(start_of_offsets(shared_.v[0]) + first_operand_offset() +
                              first_key_offset() + pair_index<kConfig>() * kOut * 4)) {}

 protected:
  // A lane's operands in a tile: the address of the tile, the same in all threads, and the lane's
  // offset. With one stage, the sum is formed last, which takes fewer registers: the tiles of Q and
  // V have one offset. With two stages, the offset begins at the first stage of shared memory, and
  // the sum is formed once for each tile of keys.
  struct Operand {
    std::uint32_t first;
    std::uint32_t offset;

    __device__ __forceinline__ std::uint32_t step_address(int step) const {
      if constexpr (kConfig.stages == 1)
        return first + tile::step_address<kConfig.columns>(offset, step);
      return tile::step_address<kConfig.columns>(first + offset, step);
    }
  };

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      states_[row_block].clear();
#pragma unroll
      for (float& x : out_[row_block]) x = 0;
    }
    store_maxima();
  }

  // The maxima of the rows lie in shared memory between the updates where the loop has no registers
  // for them.
  __device__ __forceinline__ void store_maxima() {
    if constexpr (Shared<kConfig>::kMaximaInShared) {
      shared_.maxima[ptx::opaque(threadIdx.x)] =
          make_float4(states_[0].row[0].max, states_[0].row[1].max, states_[1].row[0].max,
                      states_[1].row[1].max);
    }
  }
  __device__ __forceinline__ void load_maxima() {
    if constexpr (Shared<kConfig>::kMaximaInShared) {
      const float4 maxima = shared_.maxima[ptx::opaque(threadIdx.x)];
      states_[0].row[0].max = maxima.x;
      states_[0].row[1].max = maxima.y;
      states_[1].row[0].max = maxima.z;
      states_[1].row[1].max = maxima.w;
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
  // The part of the address of the first stage that the lane's offset includes.
  __device__ __forceinline__ static std::uint32_t start_of_offsets(const unsigned char* stage) {
    return kConfig.stages == 1 ? 0 : ptx::shared_address(stage);
  }
  // The other part, for any stage.
  __device__ __forceinline__ static std::uint32_t rest_of_address(const unsigned char* first_stage,
                                                                  int stage) {
    return kConfig.stages == 1 ? ptx::shared_address(first_stage) : stage * kConfig.k_bytes();
  }

  // Bytes from the first key of a tile to the warp's first key.
  __device__ __forceinline__ static std::int32_t first_key_offset() {
    return pair_index<kConfig>() * kKeys * Layout::kRowBytes;
  }

  __device__ __forceinline__ Operand q_operand() {
    // Computed for each tile of keys where the loops have no register for it.
    const std::uint32_t thread = kPaired ? ptx::opaque(threadIdx.x) : threadIdx.x;
    return {ptx::shared_address(shared_.q),
            static_cast<std::uint32_t>(warp_row<kConfig>() * Layout::kRowBytes +
                                       first_operand_offset(thread))};
  }
  __device__ __forceinline__ void load_q_operand(const Operand& queries, int step, int row_block,
                                                 std::uint32_t (&a)[4]) {
    ptx::ldmatrix_x4(a, queries.step_address(step) + row_block * 16 * Layout::kRowBytes);
  }

  // S = Q K^T
  __device__ __forceinline__ void multiply_qk(int stage, float (&scores)[kRowBlocks][kScores]) {
    const Operand keys = {rest_of_address(shared_.k[0], stage), k_offset_};
    const Operand queries = q_operand();
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
        ptx::ldmatrix_x4(b, keys.step_address(step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
          float* const s = scores[row_block];
          ptx::mma_m16n8k16<kConfig.fp16>(&s[8 * n], a[row_block], b[0], b[1]);
          ptx::mma_m16n8k16<kConfig.fp16>(&s[8 * n + 4], a[row_block], b[2], b[3]);
        }
      }
    }
  }

  // The lane's operands of V in a stage.
  __device__ __forceinline__ Operand v_operand(int stage) {
    return {rest_of_address(shared_.v[0], stage), v_offset_};
  }
  // The operands for the partner's keys.
  __device__ __forceinline__ Operand partner_v_operand(int stage) {
    const int sign = pair_index<kConfig>() == 0 ? 1 : -1;
    return {rest_of_address(shared_.v[0], stage) +
                static_cast<std::uint32_t>(sign * kKeys * Layout::kRowBytes),
            v_offset_};
  }

  // O += P V for keys 16 step to 16 step + 15 and columns 16 n to 16 n + 15.
  //   probs (kRowBlocks, 4), its rows `stride` registers apart
  __device__ __forceinline__ void multiply_pv_step(const Operand& values, int step, int n,
                                                   const std::uint32_t* probs, int stride) {
    std::uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, values.step_address(n) + step * 16 * Layout::kRowBytes);
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
    const Operand values = v_operand(stage);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        multiply_pv_step(values, step, n, &probs[0][4 * step], kScores / 2);
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  Mask<kConfig.k_tile> mask_;
  std::uint32_t k_offset_;  // of the lane's operands in a stage of K and of V
  std::uint32_t v_offset_;
  std::uint32_t q_[kConfig.q_registers ? kSteps : 1][kRowBlocks][4];
  float out_[kRowBlocks][kOut];
  tile::RowStates states_[kRowBlocks];
};

}  // namespace tilewise::cuda::sm80
