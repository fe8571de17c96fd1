// One tile of queries and of keys: its loads, the products Q K^T and dO V^T, and from them P and dS
// on fragments (FlashAttention-2, arXiv 2307.08691, Algorithm 2, lines 11 to 14), with every option
// of the semantics.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/backward/sm80/shared.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/sm80/cp_async_tile.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::backward::sm80 {

// kOfBias: dS is the gradient of the bias, not of the products Q K^T without the scale. They differ
// by the derivative of the softcap.
template <KernelConfig kConfig, bool kOfBias = false>
class ScoreGradient {
 public:
  using Scores = WarpTile<kConfig.q_tile, kConfig.k_tile, kConfig.warps, kConfig.score_row_warps>;
  using Fragments = typename Scores::Fragments;
  static constexpr int kRowBlocks = Scores::kRowBlocks;
  static constexpr int kCount = Scores::kCount;
  static constexpr int kRows = kRowBlocks * tile::kRowsPerLane;  // of a lane, 8 apart
  static constexpr int kThreads = kConfig.threads();

  __device__ __forceinline__ ScoreGradient(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask),
        score_offsets_(Scores::template offsets<ScoreLeft, ScoreRight>()) {}

 protected:
  using ScoreLeft = LeftOperand<kConfig.columns, Use::kAsStored>;
  using ScoreRight = RightOperand<kConfig.columns, Use::kTransposed>;

  // ---- loads ----

  template <int kRows>
  __device__ __forceinline__ static void load_tile(const Rows& rows, std::int32_t row,
                                                   unsigned char* to) {
    // The thread's place is computed each time: the main loop has no registers for it.
    cuda::sm80::load_tile<kRows, kConfig.columns, kThreads>(rows, row, to,
                                                            ptx::opaque(threadIdx.x));
  }

  // Starts the copy of K and V.
  __device__ __forceinline__ void fetch_keys() const {
    load_tile<kConfig.k_tile>(tile_.k, tile_.first, shared_.k);
    load_tile<kConfig.k_tile>(tile_.v, tile_.first, shared_.v);
    ptx::cp_async_commit();
  }

  // Finds the rows of a query head, and its mask. The first warp calls it.
  __device__ __forceinline__ void begin_head(std::int32_t head) {
    if (threadIdx.x == 0) set_query_rows(parameters_, head, tile_);
    __syncwarp();
    mask_.build_by_warp();
  }

  // Starts the copy of a tile of Q and dO and of its statistics.
  __device__ __forceinline__ void fetch_queries(std::int32_t q_tile, int stage) const {
    load_tile<kConfig.q_tile>(tile_.q, q_tile * kConfig.q_tile, shared_.q[stage]);
    load_tile<kConfig.q_tile>(tile_.dout, q_tile * kConfig.q_tile, shared_.dout[stage]);
    const std::int64_t number = tile_.first_query_tile + q_tile;
    if (threadIdx.x < 2 * kConfig.q_tile / 4) {
      ptx::cp_async_16(ptx::shared_address(&shared_.statistics[stage][0][0]) + threadIdx.x * 16,
                       parameters_.statistics + number * 2 * kConfig.q_tile + threadIdx.x * 4);
    }
    ptx::cp_async_commit();
  }

  // ---- from products to gradients ----

  // S = Q K^T
  __device__ __forceinline__ void multiply_qk(int stage, Fragments& scores) const {
    Scores::clear(scores);
    add_products(shared_.q[stage], shared_.k, scores);
  }

  // dP = dO V^T; without score mod dP - delta, since the sums may begin with -delta.
  __device__ __forceinline__ void multiply_dov(int stage, Fragments& dprobs) const {
    if constexpr (kConfig.score_mod) {
      Scores::clear(dprobs);
    } else {
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        const Statistics delta(shared_.statistics[stage][1], row_block);
#pragma unroll
        for (int r = 0; r < kCount; ++r) dprobs[row_block][r] = -delta.of(r);
      }
    }
    add_products(shared_.dout[stage], shared_.v, dprobs);
  }

  // The factors that the score mod gives to a score's gradient: of dP, which is 0 where dropout
  // drops the prob, and of dS, the derivative of the softcap.
  struct Factors {
    float keep[kRowBlocks][kCount];
    float derivative[kRowBlocks][kCount];
  };
  struct NoFactors {};
  using ScoreFactors = std::conditional_t<kConfig.score_mod, Factors, NoFactors>;

  // Whether a mask or a score mod applies to a tile of queries, or non-finite values are contained.
  __device__ __forceinline__ bool is_masked(tile::TileClass tile_class) const {
    return kConfig.score_mod || tile_class != tile::kFull || contains_non_finite_;
  }

  // P = exp(S - LSE), in place of S = Q K^T.
  __device__ __forceinline__ void probs(std::int32_t q_tile, int stage, tile::TileClass tile_class,
                                        Fragments& scores, ScoreFactors& factors) const {
    if (is_masked(tile_class)) return masked_probs(q_tile, stage, tile_class, scores, factors);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      const Statistics lse(shared_.statistics[stage][0], row_block);
#pragma unroll
      for (int r = 0; r < kCount; ++r) scores[row_block][r] = prob(scores[row_block][r], lse.of(r));
    }
  }

  // dS = P (dP - delta), in place of dP - delta (without score mod) or of dP. Masked pairs are
  // selected out.
  __device__ __forceinline__ void gradients(int stage, tile::TileClass tile_class,
                                            const Fragments& probs, const ScoreFactors& factors,
                                            Fragments& dprobs) const {
    const bool masked = is_masked(tile_class);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      const float(&p)[kCount] = probs[row_block];
      float(&ds)[kCount] = dprobs[row_block];
      if constexpr (kConfig.score_mod) {
        const Statistics delta(shared_.statistics[stage][1], row_block);
        const float(&keep)[kCount] = factors.keep[row_block];
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
          const float dp = keep[r] == 0 ? 0 : ds[r] * keep[r];
          ds[r] = math::score_gradient(p[r], dp, delta.of(r)) * factors.derivative[row_block][r];
        }
      } else if (masked) {
#pragma unroll
        for (int r = 0; r < kCount; ++r) ds[r] = math::score_gradient(p[r], ds[r], 0.0f);
      } else {
#pragma unroll
        for (int r = 0; r < kCount; ++r) ds[r] = p[r] * ds[r];
      }
    }
  }

  // P after dropout.
  __device__ __forceinline__ static void drop(const ScoreFactors& factors, Fragments& probs) {
    if constexpr (kConfig.score_mod) {
#pragma unroll
      for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int r = 0; r < kCount; ++r) probs[row_block][r] *= factors.keep[row_block][r];
      }
    }
  }

 private:
  __device__ __forceinline__ void add_products(const unsigned char* left,
                                               const unsigned char* right, Fragments& to) const {
    Scores::template multiply<ScoreLeft, ScoreRight, kConfig.columns, kConfig.fp16,
                              kConfig.keeps_offsets()>(left, right, score_offsets_, to);
  }

  // The lane's first row of the tile of queries, and its first key of the tile of keys.
  __device__ __forceinline__ static std::int32_t lane_row(std::uint32_t thread) {
    return Scores::row(thread) + tile::lane_row(static_cast<int>(thread % 32), 0);
  }
  __device__ __forceinline__ static std::int32_t lane_key(std::uint32_t thread) {
    return Scores::column(thread) + tile::lane_column(static_cast<int>(thread % 32));
  }

  // A row statistic of a lane's two rows of a row block.
  struct Statistics {
    float rows[tile::kRowsPerLane];

    __device__ __forceinline__ Statistics(const float* statistics, int row_block,
                                          std::uint32_t thread = threadIdx.x) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which)
        rows[which] = statistics[lane_row(thread) + 16 * row_block + 8 * which];
    }
    __device__ __forceinline__ float of(int r) const { return rows[tile::register_row(r)]; }
  };

  // P = exp(S - LSE), at most 1: at large scores the rounding of LSE would make it infinite. NaN
  // stays NaN.
  __device__ __forceinline__ float prob(float score, float lse_log2) const {
    return ptx::exp2_approx(ptx::min_nan(__fmaf_rn(score, parameters_.scale_log2, -lse_log2), 0));
  }

  // The mask bits of the lane's rows. A key with an element that is not finite has only scores that
  // are not finite either: a row that sees it has an LSE of NaN, and in all other rows its score is
  // -inf, which is masked.
  __device__ __forceinline__ void mask_bits(std::int32_t q_tile, int stage,
                                            tile::TileClass tile_class, std::uint32_t thread,
                                            std::uint32_t (&visible)[kRows]) const {
    const std::int32_t row = q_tile * kConfig.q_tile + lane_row(thread);
    if (tile_class != tile::kFull) {
      const std::int32_t own_column = tile::lane_column(static_cast<int>(thread % 32));
      mask_.mask_bits(
          row, 8, tile::FragmentColumns{tile_.first + Scores::column(thread), own_column}, visible);
    } else {
#pragma unroll
      for (std::uint32_t& bits : visible) bits = ~0u;
    }
    if (!contains_non_finite_) return;
    std::uint32_t non_finite = 0;
#pragma unroll 1
    for (int bit = 0; bit < Scores::kOwnColumns / 4; ++bit) {
      if (shared_.non_finite_key[lane_key(thread) + bit / 2 * 8 + bit % 2] != 0)
        non_finite |= 1u << bit;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float lse = shared_.statistics[stage][0][lane_row(thread) + 8 * i];
      if (lse == lse) visible[i] &= ~non_finite;
    }
  }

  __device__ __forceinline__ void masked_probs(std::int32_t q_tile, int stage,
                                               tile::TileClass tile_class, Fragments& scores,
                                               ScoreFactors& factors) const {
    // The places of the lane are computed here alone: the main loop has no registers for them.
    const std::uint32_t thread = ptx::opaque(threadIdx.x);
    std::uint32_t visible[kRows];
    mask_bits(q_tile, stage, tile_class, thread, visible);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      std::uint32_t own[tile::kRowsPerLane] = {visible[2 * row_block], visible[2 * row_block + 1]};
      if constexpr (kConfig.score_mod) {
        const std::int32_t row = q_tile * kConfig.q_tile + lane_row(thread) + 16 * row_block;
        set_factors(row, scores[row_block], factors.keep[row_block], factors.derivative[row_block]);
        const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                              static_cast<std::int32_t>(tile_.sequence.diagonal));
        tile::apply_score_mod<tile::FragmentLayout, tile::Softcap>(
            parameters_.problem, parameters_.scaling, parameters_.pair_loads, head, row,
            tile_.first + lane_key(thread), scores[row_block], own);
      }
      tile::apply_mask_bits<tile::FragmentLayout>(scores[row_block], own);
      const Statistics lse(shared_.statistics[stage][0], row_block, thread);
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float score = scores[row_block][r];
        const bool masked = score == -math::Limits<float>::kInfinity;
        scores[row_block][r] = masked ? 0 : prob(score, lse.of(r));
      }
    }
  }

  // The factors of a row block, from the products: a saturated score has lost the information.
  // `row` is the lane's first row in the sequence.
  __device__ __forceinline__ void set_factors(std::int32_t row, const float (&products)[kCount],
                                              float (&keep)[kCount],
                                              float (&derivative)[kCount]) const {
    const Problem& problem = parameters_.problem;
    const tile::ScoreScaling& scaling = parameters_.scaling;
#pragma unroll
    for (int r = 0; r < kCount; ++r) keep[r] = derivative[r] = 1;
    if (scaling.cap > 0 && !kOfBias) {
#pragma unroll
      for (int r = 0; r < kCount; ++r)
        derivative[r] = math::softcap_derivative(products[r] * scaling.scale, scaling.cap);
    }
    if (problem.dropout_p == 0) return;
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
#pragma unroll
    for (int r = 0; r < kCount; ++r) keep[r] = static_cast<float>(rule.keep_scale);
    tile::dropout(rule, tile_.sequence.batch * problem.heads + tile_.head, row,
                  tile_.first + Scores::column(), keep);
  }

 protected:
  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  LoadedKeyTile<std::uint16_t>& tile_;
  QueryMask<kConfig.q_tile, kConfig.k_tile> mask_;
  Offsets score_offsets_;
  // K has elements that are not finite, or this is the non-finite pass: no tile takes the short
  // path.
  bool contains_non_finite_ = false;
};

}  // namespace tilewise::cuda::backward::sm80
