// One tile of queries and of keys: its loads, the products Q K^T and dO V^T, and from them P and dS
// in registers (FlashAttention-2, arXiv 2307.08691, Algorithm 2, lines 11 to 14), with every option
// of the semantics.
#pragma once

#include "cuda/backward/fp32/gemm.cuh"
#include "cuda/backward/fp32/shared.cuh"
#include "cuda/backward/query_mask.cuh"
#include "cuda/fp32/tile.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::backward::fp32 {

using cuda::fp32::Rows;
using cuda::fp32::TileLoader;
using cuda::fp32::TileShape;

// kOfBias: dS is the gradient of the bias, not of the products Q K^T without the scale. They differ
// by the derivative of the softcap.
template <KernelConfig kConfig, bool kOfBias = false>
class ScoreGradient {
 public:
  using Scores = ScoreTile<kConfig>;
  static constexpr int kRows = Scores::kRows;  // of the thread
  static constexpr int kKeys = Scores::kColumns;
  static constexpr int kScores = kRows * kKeys;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kQTile = kConfig.q_tile;
  static constexpr int kKTile = kConfig.k_tile;
  static constexpr int kRow = kConfig.row();
  static constexpr TileShape kQueryShape = {kQTile, kConfig.columns, kRow, kThreads, 1};
  static constexpr TileShape kKeyShape = {kKTile, kConfig.columns, kRow, kThreads, kKeys};
  using Layout = ScoreLayout<kRows, kKeys>;

  __device__ __forceinline__ ScoreGradient(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask) {}

 protected:
  // ---- loads ----

  // Starts the copy of tile `number` of the rows. The threads' places are computed each time: the
  // main loop has no registers for them.
  template <TileShape kShape>
  __device__ __forceinline__ static void fetch(const Rows& rows, std::int32_t number, float* to) {
    using Loader = TileLoader<kShape>;
    Loader(rows).load(number, to, ptx::shared_address(to) + Loader::tile_offset());
  }

  // Starts the copy of K and V.
  __device__ __forceinline__ void fetch_keys() const {
    fetch<kKeyShape>(tile_.k, tile_.first / kKTile, shared_.k);
    fetch<kKeyShape>(tile_.v, tile_.first / kKTile, shared_.v);
    ptx::cp_async_commit();
  }

  // Finds the rows of a query head, and its mask. The first warp calls it.
  __device__ __forceinline__ void begin_head(std::int32_t head) {
    if (threadIdx.x == 0) set_query_rows(parameters_, head, tile_);
    __syncwarp();
    mask_.build_by_warp();
  }

  // Starts the copy of a tile of Q and of its statistics.
  __device__ __forceinline__ void fetch_q(std::int32_t q_tile) const {
    fetch<kQueryShape>(tile_.q, q_tile, shared_.q);
    const std::int64_t number = tile_.first_query_tile + q_tile;
    if (threadIdx.x < 2 * kQTile / kVector) {
      ptx::cp_async_16(ptx::shared_address(&shared_.statistics[0][0]) + threadIdx.x * 16,
                       parameters_.statistics + number * 2 * kQTile + threadIdx.x * kVector);
    }
    ptx::cp_async_commit();
  }

  // Starts the copy of a tile of dO.
  __device__ __forceinline__ void fetch_dout(std::int32_t q_tile) const {
    fetch<kQueryShape>(tile_.dout, q_tile, shared_.dout);
    ptx::cp_async_commit();
  }

  // ---- from products to gradients ----

  // S = Q K^T
  __device__ __forceinline__ void multiply_qk(float (&scores)[kScores]) const {
    multiply_rows<Scores, kRow>(shared_.q, shared_.k, tile_.k.columns, scores);
  }

  // dP = dO V^T
  __device__ __forceinline__ void multiply_dov(float (&dprobs)[kScores]) const {
    multiply_rows<Scores, kRow>(shared_.dout, shared_.v, tile_.v.columns, dprobs);
  }

  // Replaces S = Q K^T by P = exp(S - LSE), times the derivative of the softcap, which dS needs as
  // a factor. P itself goes to shared memory, after dropout, unless dV is not computed. Returns the
  // probs that dropout keeps: a bit for each.
  __device__ __forceinline__ std::uint32_t probs(std::int32_t q_tile, tile::TileClass tile_class,
                                                 float (&scores)[kScores]) const {
    const bool has_derivative = !kOfBias && parameters_.scaling.cap > 0;
    float derivatives[kScores] = {};
    if (has_derivative) set_derivatives(scores, derivatives);
    const bool masked = parameters_.score_mod || tile_class != tile::kFull || contains_non_finite_;
    if (masked) apply_score_mod_and_mask(q_tile, tile_class, scores);
    exponentiate(scores);
    const std::uint32_t kept = kept_bits(q_tile);
    if constexpr (kOfBias) return kept;
    store_probs(kept, scores);
    if (has_derivative) {
#pragma unroll
      for (int r = 0; r < kScores; ++r) scores[r] *= derivatives[r];
    }
    return kept;
  }

  // dS = P (dP - delta), in place of dP. Masked pairs are selected out.
  __device__ __forceinline__ void gradients(const float (&probs)[kScores], std::uint32_t kept,
                                            float (&dprobs)[kScores]) const {
    if (parameters_.problem.dropout_p > 0) drop(kept, dprobs);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float delta = shared_.statistics[1][row(i)];
#pragma unroll
      for (int r = i * kKeys; r < (i + 1) * kKeys; ++r)
        dprobs[r] = math::score_gradient(probs[r], dprobs[r], delta);
    }
  }

  // Writes the thread's part of P or dS to shared memory.
  __device__ __forceinline__ void store_scores(const float (&values)[kScores]) const {
    float* const to = shared_.scores + row(0) * kConfig.score_row() + across();
#pragma unroll
    for (int r = 0; r < kScores; ++r)
      to[Layout::row_offset(r) * kConfig.score_row() + Layout::column(r) * kAcross] = values[r];
  }

 private:
  // Row i of the thread in a tile of queries, and its place across the tile of keys.
  __device__ __forceinline__ static int row(int i) {
    return Scores::row(static_cast<int>(threadIdx.x), i);
  }
  __device__ __forceinline__ static int across() {
    return Scores::across(static_cast<int>(threadIdx.x));
  }
  // The thread's first key, of adjacent ones in the sequence.
  __device__ __forceinline__ std::int32_t first_key() const {
    return tile_.first + across() * kKeys;
  }

  // The derivatives of the softcap, from the products: a saturated score has lost the information.
  __device__ __forceinline__ void set_derivatives(const float (&products)[kScores],
                                                  float (&derivatives)[kScores]) const {
    const tile::ScoreScaling& scaling = parameters_.scaling;
#pragma unroll
    for (int r = 0; r < kScores; ++r)
      derivatives[r] = math::softcap_derivative(products[r] * scaling.scale, scaling.cap);
  }

  __device__ __forceinline__ void apply_score_mod_and_mask(std::int32_t q_tile,
                                                           tile::TileClass tile_class,
                                                           float (&scores)[kScores]) const {
    const std::int32_t own_row = q_tile * kQTile + row(0);
    std::uint32_t visible[kRows];
    mask_bits(own_row, tile_class, visible);
    if (parameters_.score_mod) {
      const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                            static_cast<std::int32_t>(tile_.sequence.diagonal));
      tile::apply_score_mod<Layout, tile::ExactSoftcap>(parameters_.problem, parameters_.scaling,
                                                        parameters_.pair_loads, head, own_row,
                                                        first_key(), scores, visible);
    }
    tile::apply_mask_bits<Layout>(scores, visible);
  }

  // The mask bits of the thread's rows. A key with an element that is not finite has only scores
  // that are not finite either: a row that sees it has an LSE of NaN, and in all other rows its
  // score is -inf, which is masked.
  __device__ __forceinline__ void mask_bits(std::int32_t own_row, tile::TileClass tile_class,
                                            std::uint32_t (&visible)[kRows]) const {
    if (tile_class != tile::kFull) {
      mask_.mask_bits(own_row, kLaneRows, tile::AdjacentColumns{first_key(), kKeys}, visible);
    } else {
#pragma unroll
      for (std::uint32_t& bits : visible) bits = ~0u;
    }
    if (!contains_non_finite_) return;
    std::uint32_t non_finite = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if (shared_.non_finite_key[across() + n * kAcross] != 0) non_finite |= 1u << n;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float lse = shared_.statistics[0][row(i)];
      if (lse == lse) visible[i] &= ~non_finite;
    }
  }

  // P = exp(S - LSE), at most 1: at large scores the rounding of LSE would make it infinite. NaN
  // stays NaN. A masked score gives 0 even if the LSE of its row is NaN.
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float lse = shared_.statistics[0][row(i)];
#pragma unroll
      for (int r = i * kKeys; r < (i + 1) * kKeys; ++r) {
        const bool masked = scores[r] == -math::Limits<float>::kInfinity;
        const float exponent = __fmaf_rn(scores[r], parameters_.scale_log2, -lse);
        scores[r] = masked ? 0 : ptx::exp2_approx(ptx::min_nan(exponent, 0));
      }
    }
  }

  // ---- dropout ----

  __device__ __forceinline__ std::uint32_t kept_bits(std::int32_t q_tile) const {
    const Problem& problem = parameters_.problem;
    if (problem.dropout_p == 0) return ~0u;
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    const std::int64_t head = tile_.sequence.batch * problem.heads + tile_.head;
    std::uint32_t kept = 0;
    static_assert(kScores <= 32);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      kept |= tile::kept_bits<kKeys>(rule, head, q_tile * kQTile + row(i), first_key())
              << i * kKeys;
    }
    return kept;
  }

  // Sets dropped probs to 0, and scales the others.
  __device__ __forceinline__ void drop(std::uint32_t kept, float (&values)[kScores]) const {
    const auto keep_scale = static_cast<float>(1.0 / (1.0 - parameters_.problem.dropout_p));
#pragma unroll
    for (int r = 0; r < kScores; ++r) values[r] = (kept >> r & 1) != 0 ? values[r] * keep_scale : 0;
  }

  __device__ __forceinline__ void store_probs(std::uint32_t kept,
                                              const float (&probs)[kScores]) const {
    if (parameters_.problem.dropout_p == 0) return store_scores(probs);
    float dropped[kScores];
#pragma unroll
    for (int r = 0; r < kScores; ++r) dropped[r] = probs[r];
    drop(kept, dropped);
    store_scores(dropped);
  }

 protected:
  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  LoadedKeyTile<float>& tile_;
  QueryMask<kQTile, kKTile> mask_;
  // K has elements that are not finite, or this is the non-finite pass: no tile takes the short
  // path.
  bool contains_non_finite_ = false;
};

}  // namespace tilewise::cuda::backward::fp32
