// The code that the passes of a consumer warpgroup share: the products of its 64 keys, and P and dS
// from them. S^T and dP^T lie in registers, so that P^T and dS^T are the left operands of the
// products that give dV and dK (FlashAttention-3, arXiv 2407.08608, appendix B).
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/sm90/listed_query_tiles.cuh"
#include "cuda/backward/sm90/query_gradient.cuh"
#include "cuda/backward/sm90/score_math.cuh"
#include "cuda/backward/sm90/score_mod.cuh"
#include "cuda/backward/sm90/shared.cuh"
#include "cuda/mask/key_bits.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/gemm.cuh"
#include "cuda/tile/band_reads.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::backward::sm90 {

template <KernelConfig kConfig>
class ConsumerMath {
 public:
  __device__ __forceinline__ ConsumerMath(const Parameters& parameters, Shared<kConfig>& shared,
                                          int warpgroup)
      : parameters_(parameters),
        shared_(shared),
        mask_(parameters, shared.tile, shared.mask),
        warpgroup_(warpgroup) {}

 protected:
  using Mask = QueryMask<kConfig.q_tile, KernelConfig::kKTile>;
  static constexpr int kKTile = KernelConfig::kKTile;
  static constexpr int kScores = kConfig.q_tile / 2;      // registers of S^T (64, q_tile)
  static constexpr int kGradients = kConfig.columns / 2;  // registers of dK and dV (64, columns)
  static constexpr int kScoreSteps = kConfig.q_tile / cuda::sm90::kMmaK;

  __device__ __forceinline__ void clear_gradients() {
#pragma unroll
    for (int r = 0; r < kGradients; ++r) dk_[r] = dv_[r] = 0;
    ptx::fence_operand(dk_);
    ptx::fence_operand(dv_);
  }

  __device__ __forceinline__ static PipelineState<kConfig.stages> stage_of(std::uint32_t tile) {
    return cuda::sm90::state_after<kConfig.stages>(tile);
  }

  // ---- products ----

  __device__ __forceinline__ void issue_qk(int stage) {
    multiply_keys(shared_.k, shared_.q[stage], scores_);
  }
  __device__ __forceinline__ void issue_dov(int stage) {
    multiply_keys(shared_.v, shared_.dout[stage], dprobs_);
  }

  // to (64, q_tile) = the warpgroup's rows of `keys`, times `queries`^T. One group.
  __device__ __forceinline__ void multiply_keys(const unsigned char* keys,
                                                const unsigned char* queries,
                                                float (&to)[kScores]) const {
    cuda::sm90::gemm_ss<kConfig.fp16, kConfig.q_tile, kConfig.columns, kConfig.q_tile, kKTile>(
        ptx::shared_address(keys) + warpgroup_ * tile::kRows * tile::kPanelRowBytes,
        ptx::shared_address(queries), to);
    ptx::wgmma_commit();
  }

  // to (64, columns) += left (64, q_tile) right (q_tile, columns)
  __device__ __forceinline__ void multiply(const std::uint32_t (&left)[kScores / 2],
                                           const unsigned char* right,
                                           float (&to)[kGradients]) const {
    cuda::sm90::gemm_rs<kConfig.fp16, kConfig.columns>(
        left,
        tile::columns_descriptor(ptx::shared_address(right), kConfig.q_tile * tile::kPanelRowBytes),
        to, 0, kScoreSteps, true, [](int) {});
  }

  // dq (64, 64) = dS K
  __device__ __forceinline__ void multiply_gradients(std::uint32_t tile,
                                                     float (&dq)[kBlockRegisters]) const {
    const QueryBlock<kConfig> block(warpgroup_);
    constexpr int kPanelBytes = kKTile * tile::kPanelRowBytes;
    cuda::sm90::gemm_tt<kConfig.fp16, kKTile>(
        ptx::shared_address(shared_.gradients[tile % kScoreStages]) + block.row_panel * kPanelBytes,
        ptx::shared_address(shared_.k) + block.panel * kPanelBytes, dq);
  }

  // ---- from products to gradients ----

  // P in 16 bits, 0 for masked pairs. kHidden: of the scores that hidden_scores() names, too.
  template <bool kHidden = false>
  __device__ __forceinline__ void compute_probs(std::int32_t q_tile, int stage, bool masked) {
    if constexpr (kConfig.score_mod) apply_score_mod(q_tile);
    sm90::compute_probs(shared_, parameters_.scale_log2, stage, scores_);
    pack_scores<kConfig.fp16>(scores_, probs_);
    hide_masked<kHidden>(q_tile, stage, masked, probs_);
  }

  // The derivatives of the softcap wait for dP in the registers of dS.
  __device__ __forceinline__ void apply_score_mod(std::int32_t q_tile) {
    scale_with_derivatives<kConfig.fp16>(parameters_.scaling, scores_, gradients_);
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    const std::int32_t row = q_tile * kConfig.q_tile + tile::lane_column(lane);
    const std::int32_t key = shared_.tile.first + warp_row() + tile::lane_row(lane, 0);
    const std::int32_t diagonal = static_cast<std::int32_t>(shared_.tile.sequence.diagonal);
    tile::add_alibi<TransposedLayout>(slope(), row + diagonal - key, scores_);
  }

  // The slope of the head. That of a listed tile is read again: few registers are left.
  __device__ __forceinline__ float slope() const {
    if constexpr (kConfig.block_mask)
      return slope_of(shared_.listed.order[tiles_ % kListedOrder].head);
    return slope_;
  }
  __device__ __forceinline__ float slope_of(std::int32_t head) const {
    return tile::slope_of(parameters_.problem, shared_.tile.sequence.batch, head);
  }

  // dS. The registers of S are free by then; those of dS hold the derivatives of the softcap.
  __device__ __forceinline__ void compute_gradients(int stage) {
    sm90::compute_gradients<kConfig.fp16>(
        shared_, stage, probs_, dprobs_, [&](int r, float gradient) {
          if constexpr (kConfig.score_mod)
            gradient *= ptx::unpack<kConfig.fp16>(gradients_[r / 2], r % 2);
          return gradient;
        });
  }

  // P or dS of masked pairs becomes 0, whatever it was.
  template <bool kHidden>
  __device__ __forceinline__ void hide_masked(std::int32_t q_tile, int stage, bool masked,
                                              std::uint32_t (&to)[kScores / 2]) const {
    if (!masked) return;
    // The bits are found for P, and anew for dS: no registers are left to keep them.
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    std::uint32_t visible[tile::kRowsPerLane];
    if constexpr (kConfig.block_mask) {
      listed_bits(stage, lane, visible);
    } else {
      mask_.query_bits(shared_.tile.first + warp_row() + tile::lane_row(lane, 0), 8,
                       tile::FragmentColumns{q_tile * kConfig.q_tile, tile::lane_column(lane)},
                       visible);
    }
    if (shared_.non_finite_keys != 0)
      hide_non_finite_keys<kScores>(shared_, stage, warpgroup_ * tile::kRows, visible);
    if constexpr (kHidden) {
      visible[0] &= ~hidden_scores().bits[0][threadIdx.x % 128];
      visible[1] &= ~hidden_scores().bits[1][threadIdx.x % 128];
    }
    keep_visible(visible, to);
  }

  // Looks up the warp's mask bits of a listed tile in the list of slices, where the block mask had
  // no room for them, and stores them as if it had. Lanes test 32 bands at once. All branches
  // follow votes, which show ptxas that the lanes stay together, so that addresses stay in uniform
  // registers.
  __device__ __forceinline__ void search_bits(std::uint32_t tile) const {
    const ListedTile listed = shared_.listed.order[tile % kListedOrder];
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    if (lane == 0) tile::count_slow_path(tile::SlowPath::kSearchedBands);
    const std::int32_t slices = static_cast<std::int32_t>(parameters_.problem.slices.count);
    const tile::BandTable table(parameters_.block_mask.bands, slices);
    const std::int32_t first_key = shared_.tile.first + warp_row();
    const tile::Range keys = {first_key, first_key + tile::kWarpRows};
    const std::int32_t first = listed.q_tile * kConfig.q_tile;
    const tile::Range rows = {first, first + kConfig.q_tile};
    const auto touches = [&](const tile::BandBox& box) {
      return __any_sync(~0u, box.touches(listed.head, rows, keys)) != 0;
    };
    std::uint32_t bits[tile::kRowsPerLane] = {};
#pragma unroll 1
    for (std::int32_t i = 0; i < slices; i += tile::kBandsOfBox) {
      constexpr std::int32_t kOuter = tile::kBandsOfBox * tile::kBoxesOfBox;
      if (i % kOuter == 0 && !touches(table.outer[i / kOuter])) {
        i += kOuter - tile::kBandsOfBox;
        continue;
      }
      if (!touches(table.boxes[i / tile::kBandsOfBox])) continue;
      add_bands(table.bands, i, math::min(slices - i, 32), listed.head, rows, keys, bits);
    }
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      own_bits(static_cast<int>(tile % kConfig.stages), lane)[which * kBitsOf8Keys] = bits[which];
    ptx::fence_proxy_async();  // a bulk copy stores the bits of a later tile at the same place
  }

  // Adds the warp's keys that `count` bands show to some rows.
  __device__ __forceinline__ void add_bands(const tile::Band* bands, std::int32_t first,
                                            std::int32_t count, std::int32_t head,
                                            const tile::Range& rows, const tile::Range& keys,
                                            std::uint32_t (&bits)[tile::kRowsPerLane]) const {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    const std::int32_t own = first + math::min(lane, count - 1);
    tile::count_band_read();
    const tile::Band band = bands[own];
    const bool touched = lane < count && (band.head == -1 || band.head == head) &&
                         band.row_begin < rows.end && band.row_end > rows.begin &&
                         band.key_begin < keys.end && band.key_end > keys.begin;
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, touched); left != 0; left &= left - 1) {
      tile::Band other = bands[first + __ffs(static_cast<int>(left)) - 1];
      const Sequence& sequence = shared_.tile.sequence;
      other.key_end = math::min(other.key_end, static_cast<std::int32_t>(sequence.k_len));
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        bits[which] |= mask::rows_that_see(other, keys.begin + tile::lane_row(lane, which),
                                           static_cast<std::int32_t>(sequence.q_len),
                                           {rows.begin, tile::lane_column(lane)});
      }
    }
  }

  // The queries of a listed tile that see the lane's keys.
  __device__ __forceinline__ void listed_bits(int stage, int lane,
                                              std::uint32_t (&visible)[tile::kRowsPerLane]) const {
    const bool partial = shared_.listed.bits_of[stage] != tile::kFullTile;
    const std::uint32_t* const own = own_bits(stage, lane);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      visible[which] = partial ? own[which * kBitsOf8Keys] : ~0u;
  }

  // The lane's numbers among the mask bits of a stage.
  static constexpr int kBitsOf8Keys = 8 * tile::kLanesPerRow;
  __device__ __forceinline__ std::uint32_t* own_bits(int stage, int lane) const {
    return shared_.listed.bits[stage] + warp_row() * tile::kLanesPerRow + lane;
  }

  template <bool kHidden = false>
  __device__ __forceinline__ void pack_gradients(std::int32_t q_tile, int stage, bool masked) {
    pack_scores<kConfig.fp16>(dprobs_, gradients_);
    hide_masked<kHidden>(q_tile, stage, masked, gradients_);
  }

  // Stores the warp's rows of dS^T or P^T (k_tile, q_tile).
  __device__ __forceinline__ void store_scores(const std::uint32_t (&from)[kScores / 2],
                                               unsigned char* to) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = warp_row() + lane % 16;
    const std::uint32_t rows = ptx::shared_address(to) + row * tile::kPanelRowBytes;
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      const int panel = step / 4;
      const int chunk = (step % 4 * 2 + lane / 16) ^ (lane % 8);
      const std::uint32_t pairs[4] = {from[4 * step], from[4 * step + 1], from[4 * step + 2],
                                      from[4 * step + 3]};
      ptx::stmatrix_x4(rows + panel * kKTile * tile::kPanelRowBytes + chunk * tile::kChunkBytes,
                       pairs);
    }
  }

  // The scores of -inf of a lane, in the memory of dQ, which the non-finite pass does not compute.
  struct HiddenScores {
    std::uint8_t pairs[kScores / 2][128];
    std::uint32_t bits[tile::kRowsPerLane][128];
  };
  static_assert(sizeof(HiddenScores) <= sizeof(Shared<kConfig>::dq) / KernelConfig::kConsumers);
  __device__ __forceinline__ volatile HiddenScores& hidden_scores() const {
    const std::uint32_t warpgroup = ptx::opaque(threadIdx.x) / 128 - 1;
    return *reinterpret_cast<volatile HiddenScores*>(shared_.dq[warpgroup]);
  }

  // The warp's first key in the tile of keys.
  __device__ __forceinline__ int warp_row() const {
    return warpgroup_ * tile::kRows + static_cast<int>(threadIdx.x % 128 / 32) * tile::kWarpRows;
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Mask mask_;
  int warpgroup_;
  std::uint32_t tiles_ = 0;                                    // tiles of queries that are done
  float slope_ = 0;                                            // of the head; not of listed tiles
  float scores_[kScores], dprobs_[kScores];                    // S^T and dP^T, then P and dS
  std::uint32_t probs_[kScores / 2], gradients_[kScores / 2];  // P^T and dS^T in 16 bits
  float dk_[kGradients], dv_[kGradients];
};

}  // namespace tilewise::cuda::backward::sm90
