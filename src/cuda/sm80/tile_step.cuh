// What a block does with a tile of keys, on fragments: scores, rules, softmax, the product with V.
// The kernels differ in what comes from where, in which order, and what becomes of the results.
#pragma once

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/cp_async_tile.cuh"
#include "cuda/sm80/mask_table.cuh"
#include "cuda/sm80/warp_pair.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/ldmatrix_tile.h"
#include "cuda/tile/score_mod.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class TileStep {
 public:
  static constexpr int kParts = kConfig.row_parts;
  static constexpr bool kPaired = kConfig.paired;
  static constexpr int kKeys = kConfig.k_tile / kConfig.column_parts();  // of the warp's scores
  static constexpr int kScores = kKeys / 2;                              // registers of a part
  static constexpr int kOut = kConfig.columns / 2 / kConfig.column_parts();
  static constexpr int kSteps = kConfig.columns / 16;                // of the product with K
  static constexpr int kKeySteps = kKeys / 16;                       // of the product with V
  static constexpr int kOutSteps = kSteps / kConfig.column_parts();  // 16 columns of out each
  using Layout = tile::LdmatrixTile<kConfig.columns>;
  static_assert(!kPaired || (kParts == 2 && kConfig.columns % 128 == 0 && !kConfig.score_mod),
                "Half of the columns are whole groups of chunks.");

  __device__ TileStep(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(ptx::opaque(shared)),
        tile_(shared_.tile),
        mask_(parameters, tile_, shared_.mask),
        k_start_(ptx::opaque(ptx::shared_address(shared_.k[0]) + place_second() + own_keys())),
        v_start_(ptx::opaque(ptx::shared_address(shared_.v[0]) + place_first() + own_keys() +
                             column_part<kConfig>() * kOut * 4)) {}

 protected:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      states_[part].clear();
#pragma unroll
      for (float& x : out_[part]) x = 0;
    }
  }

  __device__ __forceinline__ void load_k(std::int32_t key, int stage) {
    load_tile<kConfig.k_tile, kConfig.columns, kConfig.threads()>(tile_.k, key * kConfig.k_tile,
                                                                  shared_.k[stage]);
  }
  __device__ __forceinline__ void load_v(std::int32_t key, int stage) {
    load_tile<kConfig.k_tile, kConfig.columns, kConfig.threads()>(tile_.v, key * kConfig.k_tile,
                                                                  shared_.v[stage]);
  }

  // Where the lane's part of the first operand of a product lies in it; of the second.
  __device__ __forceinline__ static std::int32_t place_first(std::uint32_t thread = threadIdx.x) {
    const int lane = static_cast<int>(thread % 32);
    return Layout::place(tile::lane_row_first(lane), tile::lane_chunk_first(lane));
  }
  __device__ __forceinline__ static std::int32_t place_second() {
    const int lane = threadIdx.x % 32;
    return Layout::place(tile::lane_row_second(lane), tile::lane_chunk_second(lane));
  }
  // From the first key of a tile to the warp's first one, in bytes.
  __device__ __forceinline__ static std::int32_t own_keys() {
    return column_part<kConfig>() * kKeys * Layout::kRowBytes;
  }
  __device__ __forceinline__ std::uint32_t queries_start() {
    // Found again for each tile of keys where the loops have no register for it.
    const std::uint32_t thread = kPaired ? ptx::opaque(threadIdx.x) : threadIdx.x;
    return ptx::shared_address(shared_.q) + warp_row<kConfig>() * Layout::kRowBytes +
           place_first(thread);
  }
  __device__ __forceinline__ void load_queries(std::uint32_t start, int step, int part,
                                               std::uint32_t (&a)[4]) {
    ptx::ldmatrix_x4(
        a, tile::step_address<kConfig.columns>(start, step) + part * 16 * Layout::kRowBytes);
  }

  // scores = Q K^T
  __device__ __forceinline__ void multiply_scores(int stage, float (&scores)[kParts][kScores]) {
    const std::uint32_t start = k_start_ + stage * kConfig.k_bytes();
    const std::uint32_t queries = queries_start();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (float& x : scores[part]) x = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if constexpr (kConfig.q_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[part][i] = q_[step][part][i];
        } else {
          load_queries(queries, step, part, a[part]);
        }
      }
#pragma unroll
      for (int n = 0; n < kKeySteps; ++n) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(
            b, tile::step_address<kConfig.columns>(start, step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          ptx::mma_m16n8k16<kConfig.fp16>(&scores[part][8 * n], a[part], b[0], b[1]);
          ptx::mma_m16n8k16<kConfig.fp16>(&scores[part][8 * n + 4], a[part], b[2], b[3]);
        }
      }
    }
  }

  // Takes the scores of a tile into out and the states: Algorithm 1, lines 9 and 10. `kMasked`: a
  // mask or a score rule is to be applied.
  template <bool kMasked>
  __device__ __forceinline__ void absorb(std::int32_t key, tile::TileClass kind, int stage,
                                         float (&scores)[kParts][kScores]) {
    if constexpr (kMasked) apply_rules(key, kind, scores);
    tile::Anchors anchors[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      anchors[part] = tile::update_max(scores[part], states_[part], parameters_.scale_log2);
    absorb(key, stage, anchors, scores);
  }

  // The same with the states raised, and all rules applied.
  __device__ __forceinline__ void absorb(std::int32_t key, int stage,
                                         const tile::Anchors (&anchors)[kParts],
                                         float (&scores)[kParts][kScores]) {
    bool moved = false;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      moved |= anchors[part].factor[0] != 1.0f || anchors[part].factor[1] != 1.0f;
    if (__any_sync(~0u, moved)) rescale(anchors);
    if constexpr (kConfig.score_mod) {
      std::uint32_t probs[kParts][kScores / 2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const tile::Anchors rescaled = {{anchors[part].anchor[0], anchors[part].anchor[1]}, {1, 1}};
        tile::add_sums(tile::exp2_scores(scores[part], rescaled, parameters_.scale_log2), rescaled,
                       states_[part]);
        drop_probs(part, key, scores[part]);
        tile::pack_probs<kConfig.fp16>(scores[part], probs[part]);
      }
      multiply_values(stage, probs);
    } else {
      exp2_and_multiply(stage, scores, anchors);
    }
  }

  // Brings what there is to a new maximum.
  __device__ __forceinline__ void rescale(const tile::Anchors (&anchors)[kParts]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int r = 0; r < kOut; ++r) out_[part][r] *= anchors[part].factor[tile::register_row(r)];
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        states_[part].row[which].sum *= anchors[part].factor[which];
      }
    }
  }

  // Byte of V from which the lane loads operands.
  __device__ __forceinline__ std::uint32_t values_start(int stage) {
    return v_start_ + stage * kConfig.k_bytes();
  }

  // out += probs V, for keys 16 step to 16 step + 15 and columns 16 n to 16 n + 15. probs
  // (kParts, 4)
  __device__ __forceinline__ void multiply_block(std::uint32_t start, int step, int n,
                                                 const std::uint32_t* probs, int stride) {
    std::uint32_t b[4];
    ptx::ldmatrix_x4_trans(
        b, tile::step_address<kConfig.columns>(start, n) + step * 16 * Layout::kRowBytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::mma_m16n8k16<kConfig.fp16>(&out_[part][8 * n], probs + part * stride, b[0], b[1]);
      ptx::mma_m16n8k16<kConfig.fp16>(&out_[part][8 * n + 4], probs + part * stride, b[2], b[3]);
    }
  }

  // out += probs V
  __device__ __forceinline__ void multiply_values(
      int stage, const std::uint32_t (&probs)[kParts][kScores / 2]) {
    const std::uint32_t start = values_start(stage);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        multiply_block(start, step, n, &probs[0][4 * step], kScores / 2);
      }
    }
  }

  // A pair, before a barrier of both: the rules are applied to the scores, and the maxima of the
  // warp's keys go to its partner.
  template <bool kMasked>
  __device__ __forceinline__ void give_maxima(std::int32_t key, tile::TileClass kind,
                                              float (&scores)[kParts][kScores],
                                              tile::RowMax (&maxima)[kParts]) {
    if constexpr (kMasked) apply_rules(key, kind, scores);
#pragma unroll
    for (int part = 0; part < kParts; ++part) maxima[part] = tile::row_max_of(scores[part]);
    const float rows[4] = {maxima[0].row[0], maxima[0].row[1], maxima[1].row[0], maxima[1].row[1]};
    give_rows(shared_, rows);
  }

  // Behind it: the maxima of all keys raise the states.
  __device__ __forceinline__ void take_maxima(const tile::RowMax (&own)[kParts],
                                              tile::Anchors (&anchors)[kParts]) {
    const float4 rows = take_rows(shared_);
    const tile::RowMax others[kParts] = {{{rows.x, rows.y}}, {{rows.z, rows.w}}};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const tile::RowMax all = {{fmaxf(own[part].row[0], others[part].row[0]),
                                 fmaxf(own[part].row[1], others[part].row[1])}};
      anchors[part] = tile::update_max(all, states_[part], parameters_.scale_log2);
    }
  }

  // Probs of 16 keys to the partner. probs (kParts, 4)
  __device__ __forceinline__ void give_probs(int step, const std::uint32_t* probs) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t* const of = probs + 4 * part;
      const std::uint32_t thread = ptx::opaque(threadIdx.x);
      shared_.exchange.probs[thread / 32][step * kParts + part][thread % 32] =
          make_uint4(of[0], of[1], of[2], of[3]);
    }
  }

  // out += probs V for the partner's keys.
  __device__ __forceinline__ void multiply_partner(int stage) {
    const std::uint32_t start =
        values_start(stage) + (column_part<kConfig>() == 0 ? 1 : -1) * kKeys * Layout::kRowBytes;
    await_partner();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      std::uint32_t probs[4 * kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const std::uint32_t thread = ptx::opaque(threadIdx.x);
        const uint4 of = shared_.exchange.probs[thread / 32 ^ 1][step * kParts + part][thread % 32];
        probs[4 * part] = of.x;
        probs[4 * part + 1] = of.y;
        probs[4 * part + 2] = of.z;
        probs[4 * part + 3] = of.w;
      }
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) multiply_block(start, step, n, probs, 4);
    }
  }

  // Scores become probs, and out += probs V: while the tensor cores multiply the probs of 16
  // keys, the exponentials of the next 16 are computed, some between every two products.
  __device__ __forceinline__ void exp2_and_multiply(int stage,
                                                    const float (&scores)[kParts][kScores],
                                                    const tile::Anchors (&anchors)[kParts]) {
    const std::uint32_t start = values_start(stage);
    constexpr int kPairs = 4 * kParts;  // of probs in 16 keys
    std::uint32_t probs[2][kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) probs[0][i] = probs_pair(scores, anchors, 0, i);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if constexpr (kPaired) {
        give_probs(step, probs[step % 2]);
        if (step + 1 == kKeySteps) tell_partner();
      }
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        multiply_block(start, step, n, probs[step % 2], 4);
        if (step + 1 == kKeySteps) continue;
#pragma unroll
        for (int i = n * kPairs / kOutSteps; i < (n + 1) * kPairs / kOutSteps; ++i) {
          probs[(step + 1) % 2][i] = probs_pair(scores, anchors, step + 1, i);
        }
      }
    }
    if constexpr (kPaired) multiply_partner(stage);
  }

  // Operand register i (part * 4 + its number) of the probs of 16 keys.
  __device__ __forceinline__ std::uint32_t probs_pair(const float (&scores)[kParts][kScores],
                                                      const tile::Anchors (&anchors)[kParts],
                                                      int step, int i) {
    const int part = i / 4;
    const int r = 8 * step + i % 4 * 2;
    const int which = tile::register_row(r);
    const float anchor = anchors[part].anchor[which];
    const float scale_log2 = parameters_.scale_log2;
    const float first = ptx::exp2_approx(__fmaf_rn(scores[part][r], scale_log2, -anchor));
    const float second = ptx::exp2_approx(__fmaf_rn(scores[part][r + 1], scale_log2, -anchor));
    states_[part].row[which].sum += first + second;
    return ptx::pack<kConfig.fp16>(first, second);
  }

  // From products to scores: score rule and mask. The rows of a lane are 8 apart, in all parts.
  __device__ __forceinline__ void apply_rules(std::int32_t key, tile::TileClass kind,
                                              float (&scores)[kParts][kScores]) {
    const std::int32_t row = lane_row<kConfig>(tile_, 0);
    const std::int32_t column = key * kConfig.k_tile + column_part<kConfig>() * kKeys;
    const std::int32_t own_column = tile::lane_column(threadIdx.x % 32);
    std::uint32_t visible[kParts * tile::kRowsPerLane];
    if (kind != tile::kFull) {
      mask_.see(row, 8, tile::FragmentColumns{column, own_column}, visible);
    } else {
#pragma unroll
      for (int i = 0; i < kParts * tile::kRowsPerLane; ++i)
        visible[i] = row + 8 * i <= tile_.last ? ~0u : 0u;
    }
    const bool non_finite_pass = shared_.non_finite_pass;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      std::uint32_t own[tile::kRowsPerLane] = {visible[2 * part], visible[2 * part + 1]};
      if constexpr (kConfig.score_mod) {
        const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                              static_cast<std::int32_t>(tile_.sequence.diagonal));
        tile::apply_score_mod<tile::FragmentLayout, tile::Softcap>(
            parameters_.problem, parameters_.scaling, parameters_.pair_loads, head, row + 16 * part,
            column + own_column, scores[part], own);
      }
      tile::apply_mask_bits<tile::FragmentLayout>(scores[part], own);
      if (non_finite_pass) note_non_finite_keys(part, own, own_column);
    }
  }

  __device__ __forceinline__ void drop_probs(int part, std::int32_t key, float (&probs)[kScores]) {
    if constexpr (kConfig.score_mod) {
      const Problem& problem = parameters_.problem;
      if (problem.dropout_p == 0) return;
      const math::DropoutRule rule =
          math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
      tile::dropout(rule, tile_.sequence.batch * problem.heads + tile_.head,
                    lane_row<kConfig>(tile_, part), key * kConfig.k_tile, probs);
    }
  }

  // From here on rows are looked at one by one; nothing is known against any of them yet. Between
  // barriers.
  __device__ void begin_non_finite_pass() {
    shared_.non_finite_pass = true;
    mask_.forget_full();
    shared_.seen[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < kConfig.q_tile(); i += kConfig.threads())
      shared_.non_finite_row[i] = 0;
    __syncthreads();
  }

  // The non_finite_pass pass: rows that see a key with an operand that is not finite.
  __device__ __forceinline__ void note_non_finite_keys(
      int part, const std::uint32_t (&visible)[tile::kRowsPerLane], std::int32_t own_column) {
    std::uint32_t non_finite = 0;
    const std::uint8_t* const non_finite_key =
        shared_.non_finite_key + column_part<kConfig>() * kKeys;
    for (int bit = 0; bit < kKeys / 4; ++bit) {
      if (non_finite_key[bit / 2 * 8 + bit % 2 + own_column] != 0) non_finite |= 1u << bit;
    }
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if ((visible[which] & non_finite) != 0)
        shared_.seen[threadIdx.x] |= 1u << (part * tile::kRowsPerLane + which);
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const Tile& tile_;
  Mask<kConfig.k_tile> mask_;
  std::uint32_t
      k_start_;  // where the lane's operands of K begin in the first stage, and those of V
  std::uint32_t v_start_;
  std::uint32_t q_[kConfig.q_registers ? kSteps : 1][kParts][4];
  float out_[kParts][kOut];
  tile::RowStates states_[kParts];
};

}  // namespace tilewise::cuda::sm80
