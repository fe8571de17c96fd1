// The forward kernel of every GPU since Ampere: FlashAttention-2 (arXiv 2307.08691), Algorithm 1. A
// block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/load.h"
#include "cuda/ptx/matrix_load.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/loader.cuh"
#include "cuda/sm80/mask.cuh"
#include "cuda/tile/score.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class Forward {
 public:
  static constexpr int kParts = kConfig.row_parts;
  static constexpr int kScores = kConfig.k_tile / 2;  // registers of a part
  static constexpr int kOut = kConfig.columns / 2;
  static constexpr int kSteps = kConfig.columns / 16;    // of the product with K
  static constexpr int kKeySteps = kConfig.k_tile / 16;  // of the product with V
  using Layout = tile::RowTile<kConfig.columns>;
  // Whether there are registers for what could be computed again.
  static constexpr bool kSpare = kParts * kConfig.columns != 256 || kConfig.columns == 256;
  template <int kRows>
  using TilesOf = Tiles<kRows, kConfig.columns, kConfig.threads(), kSpare>;

  __device__ Forward(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask),
        k_tiles_(tile_.k),
        v_tiles_(tile_.v),
        copied_(kept(ptx::shared_address(shared.k[0]) + TilesOf<kConfig.k_tile>::place())),
        k_start_(kept(ptx::shared_address(shared.k[0]) + second_place())),
        v_start_(kept(ptx::shared_address(shared.v[0]) + first_place())) {}

  __device__ __forceinline__ void run() {
    using Queries = TilesOf<kConfig.q_tile()>;
    const Queries queries(tile_.q);
    const std::int32_t query_tile = tile_.first / kConfig.q_tile();
    queries.load(query_tile, query_tile < queries.inside(), parameters_.problem.q.row, shared_.q,
                 ptx::shared_address(shared_.q) + Queries::place());
    ptx::commit_copies();
    if (threadIdx.x < 32) mask_.gather();
    if (threadIdx.x == 0) shared_.careful = false;
    __syncthreads();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    bool again;
    do {
      attend();
      const bool was_careful = shared_.careful;
      again = __syncthreads_or(epilogue.is_spoilt()) && !was_careful;
      if (again) begin_careful_pass();
    } while (again);
    epilogue.finish();
  }

 private:
  // out and the states of its rows, keys from the last to the first. The careful pass takes
  // operands that are not finite for zero and notes the rows that see one; all other rows get the
  // same bits.
  __device__ __forceinline__ void attend() {
    clear();
    if constexpr (kSpare) careful_ = tile::uniform(std::int32_t{shared_.careful}) != 0;
    inside_ = tile::smaller(k_tiles_.inside(), v_tiles_.inside());
    std::int32_t key = mask_.open();
    if (key < 0) return ptx::wait_copies<0>();
    load_k(key, 0);
    if constexpr (kConfig.stages == 2) load_v(key, 0);
    ptx::commit_copies();
    ptx::wait_copies<1>();
    __syncthreads();
    take_queries();
    for (int stage = 0; key >= 0; stage = (stage + 1) % kConfig.stages) {
      const std::int32_t next = mask_.before(key);
      ptx::wait_copies<0>();
      __syncthreads();
      prefetch(key, next, stage);
      const tile::TileClass kind = mask_.kind(key);
      // Each with its own code: a branch inside would keep products and exponentials apart.
      if (kConfig.general || kind != tile::kFull || is_careful()) {
        step<true>(key, kind, next, stage);
      } else {
        step<false>(key, kind, next, stage);
      }
      key = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10. `kRules`: a mask or a score rule is to be applied.
  template <bool kRules>
  __device__ __forceinline__ void step(std::int32_t key, tile::TileClass kind, std::int32_t next,
                                       int stage) {
    if (kRules && is_careful()) clean_stage(stage);
    float scores[kParts][kScores];
    multiply_scores(stage, scores);
    if constexpr (kConfig.stages == 1) exchange(next);
    if constexpr (kRules) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) apply_rules(part, key, kind, scores[part]);
    }
    tile::Anchors anchors[kParts];
    bool moved = false;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      anchors[part] = tile::raise(scores[part], states_[part], parameters_.unit);
      moved |= anchors[part].factor[0] != 1.0f || anchors[part].factor[1] != 1.0f;
    }
    if (__any_sync(~0u, moved)) rescale(anchors);
    if constexpr (kConfig.general) {
      std::uint32_t weights[kParts][kScores / 2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const tile::Anchors moved_already = {{anchors[part].anchor[0], anchors[part].anchor[1]},
                                             {1, 1}};
        tile::weigh(scores[part], moved_already, states_[part], parameters_.unit);
        drop_weights(part, key, scores[part]);
        tile::pack<kConfig.fp16>(scores[part], weights[part]);
      }
      multiply_values(stage, weights);
    } else {
      weigh_and_multiply(stage, scores, anchors);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      states_[part].clear();
#pragma unroll
      for (float& x : out_[part]) x = 0;
    }
  }

  __device__ __forceinline__ void load_k(std::int32_t key, int stage) {
    k_tiles_.load(key, key < inside_, parameters_.problem.k.row, shared_.k[stage],
                  copied_ + stage * kConfig.k_bytes());
  }
  __device__ __forceinline__ void load_v(std::int32_t key, int stage) {
    v_tiles_.load(key, key < inside_, parameters_.problem.v.row, shared_.v[stage],
                  copied_ + (kConfig.stages + stage) * kConfig.k_bytes());
  }

  // K of this tile is there, and everybody is done with the one before it. Two stages: V is there
  // too, and the next tile comes while this one is computed. One: V comes during the product with
  // K.
  __device__ __forceinline__ void prefetch(std::int32_t key, std::int32_t next, int stage) {
    if constexpr (kConfig.stages == 2) {
      if (next < 0) return;
      load_k(next, stage ^ 1);
      load_v(next, stage ^ 1);
    } else {
      load_v(key, 0);
    }
    ptx::commit_copies();
  }

  // One stage: V is there and nobody reads K any more, so that the next one comes.
  __device__ __forceinline__ void exchange(std::int32_t next) {
    ptx::wait_copies<0>();
    __syncthreads();
    if (next >= 0) load_k(next, 0);
    ptx::commit_copies();
  }

  // Q is there.
  __device__ __forceinline__ void take_queries() {
    if (is_careful()) {
      clean_tile<kConfig.fp16, kConfig.q_tile(), kConfig.columns, kConfig.threads()>(
          shared_.q, shared_.bad_row);
      __syncthreads();
    }
    if constexpr (kConfig.q_registers) {
      const std::uint32_t start = queries_start();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) load_queries(start, step, part, q_[step][part]);
      }
    }
  }
  __device__ __forceinline__ std::uint32_t queries_start() {
    return ptx::shared_address(shared_.q) + warp_row<kConfig>() * Layout::kRowBytes +
           first_place();
  }
  // In a register where there are some to spare.
  __device__ __forceinline__ static std::uint32_t kept(std::uint32_t address) {
    return kSpare && kConfig.columns <= 64 ? ptx::kept(address) : address;
  }
  // Where a lane's part of the first operand of a product lies; of the second.
  __device__ __forceinline__ static std::int32_t first_place() {
    const int lane = threadIdx.x % 32;
    return Layout::place(tile::lane_row_first(lane), tile::lane_chunk_first(lane));
  }
  __device__ __forceinline__ static std::int32_t second_place() {
    const int lane = threadIdx.x % 32;
    return Layout::place(tile::lane_row_second(lane), tile::lane_chunk_second(lane));
  }
  __device__ __forceinline__ void load_queries(std::uint32_t start, int step, int part,
                                               std::uint32_t (&a)[4]) {
    ptx::load_matrices(
        a, tile::step_address<kConfig.columns>(start, step) + part * 16 * Layout::kRowBytes);
  }

  // scores = Q K^T
  __device__ __forceinline__ void multiply_scores(int stage, float (&scores)[kParts][kScores]) {
    const std::uint32_t start = k_start_ + stage * kConfig.k_bytes();
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
          load_queries(queries_start(), step, part, a[part]);
        }
      }
#pragma unroll
      for (int n = 0; n < kConfig.k_tile / 16; ++n) {
        std::uint32_t b[4];
        ptx::load_matrices(
            b, tile::step_address<kConfig.columns>(start, step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          ptx::multiply<kConfig.fp16>(&scores[part][8 * n], a[part], b[0], b[1]);
          ptx::multiply<kConfig.fp16>(&scores[part][8 * n + 4], a[part], b[2], b[3]);
        }
      }
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

  // out += weights V, for keys 16 step to 16 step + 15 and columns 16 n to 16 n + 15. weights
  // (kParts, 4)
  __device__ __forceinline__ void multiply_block(std::uint32_t start, int step, int n,
                                                 const std::uint32_t* weights, int stride) {
    std::uint32_t b[4];
    ptx::load_transposed(
        b, tile::step_address<kConfig.columns>(start, n) + step * 16 * Layout::kRowBytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::multiply<kConfig.fp16>(&out_[part][8 * n], weights + part * stride, b[0], b[1]);
      ptx::multiply<kConfig.fp16>(&out_[part][8 * n + 4], weights + part * stride, b[2], b[3]);
    }
  }

  // out += weights V
  __device__ __forceinline__ void multiply_values(
      int stage, const std::uint32_t (&weights)[kParts][kScores / 2]) {
    const std::uint32_t start = values_start(stage);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        multiply_block(start, step, n, &weights[0][4 * step], kScores / 2);
      }
    }
  }

  // Scores become weights, and out += weights V: while the tensor cores multiply the weights of 16
  // keys, the exponentials of the next 16 are computed, some between every two products.
  __device__ __forceinline__ void weigh_and_multiply(int stage,
                                                     const float (&scores)[kParts][kScores],
                                                     const tile::Anchors (&anchors)[kParts]) {
    const std::uint32_t start = values_start(stage);
    constexpr int kPairs = 4 * kParts;  // of weights in 16 keys
    std::uint32_t weights[2][kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) weights[0][i] = weigh_pair(scores, anchors, 0, i);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        multiply_block(start, step, n, weights[step % 2], 4);
        if (step + 1 == kKeySteps) continue;
#pragma unroll
        for (int i = n * kPairs / kSteps; i < (n + 1) * kPairs / kSteps; ++i) {
          weights[(step + 1) % 2][i] = weigh_pair(scores, anchors, step + 1, i);
        }
      }
    }
  }

  // Operand register i (part * 4 + its number) of the weights of 16 keys.
  __device__ __forceinline__ std::uint32_t weigh_pair(const float (&scores)[kParts][kScores],
                                                      const tile::Anchors (&anchors)[kParts],
                                                      int step, int i) {
    const int part = i / 4;
    const int r = 8 * step + i % 4 * 2;
    const int which = tile::register_row(r);
    const float anchor = anchors[part].anchor[which];
    const float unit = parameters_.unit;
    const float first = ptx::exp2_approx(__fmaf_rn(scores[part][r], unit, -anchor));
    const float second = ptx::exp2_approx(__fmaf_rn(scores[part][r + 1], unit, -anchor));
    states_[part].row[which].sum += first + second;
    return ptx::pack<kConfig.fp16>(first, second);
  }

  // From products to scores: score rule and mask.
  __device__ __forceinline__ void apply_rules(int part, std::int32_t key, tile::TileClass kind,
                                              float (&scores)[kScores]) {
    const std::int32_t row = lane_row<kConfig>(tile_, part);
    const std::int32_t column = key * kConfig.k_tile;
    const std::int32_t own_column = tile::lane_column(threadIdx.x % 32);
    std::uint32_t visible[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const std::int32_t of_row = row + 8 * which;
      visible[which] = of_row <= tile_.last ? ~0u : 0u;
      if (kind != tile::kFull) {
        visible[which] = mask_.visible(of_row, tile::FragmentColumns{column, own_column});
      }
    }
    if constexpr (kConfig.general) {
      const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                            static_cast<std::int32_t>(tile_.sequence.diagonal));
      tile::apply_score_rule<tile::FragmentLayout>(parameters_.problem, head, row,
                                                   column + own_column, scores, visible);
    }
    tile::hide<tile::FragmentLayout>(scores, visible);
    if (is_careful()) note_bad_keys(part, visible, own_column);
  }

  __device__ __forceinline__ void drop_weights(int part, std::int32_t key,
                                               float (&weights)[kScores]) {
    if constexpr (kConfig.general) {
      const Problem& problem = parameters_.problem;
      if (problem.dropout_p == 0) return;
      const math::DropoutRule rule =
          math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
      tile::drop(rule, tile_.sequence.batch * problem.heads + tile_.head,
                 lane_row<kConfig>(tile_, part), key * kConfig.k_tile, weights);
    }
  }

  // ---- the careful pass ----

  __device__ __forceinline__ bool is_careful() const {
    return kSpare ? careful_ : shared_.careful;
  }
  __device__ void begin_careful_pass() {
    shared_.careful = true;
    shared_.seen[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < kConfig.q_tile(); i += kConfig.threads()) shared_.bad_row[i] = 0;
    __syncthreads();
  }

  // Operands of K and V that are not finite become zero; both are there afterwards.
  __device__ __forceinline__ void clean_stage(int stage) {
    for (int i = threadIdx.x; i < kConfig.k_tile; i += kConfig.threads()) shared_.bad_key[i] = 0;
    ptx::wait_copies<0>();
    __syncthreads();
    for (int which = 0; which < 2; ++which) {
      clean_tile<kConfig.fp16, kConfig.k_tile, kConfig.columns, kConfig.threads()>(
          which == 0 ? shared_.k[stage] : shared_.v[stage], shared_.bad_key);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void note_bad_keys(int part,
                                                const std::uint32_t (&visible)[tile::kRowsPerLane],
                                                std::int32_t own_column) {
    std::uint32_t bad = 0;
    for (int bit = 0; bit < kConfig.k_tile / 4; ++bit) {
      if (shared_.bad_key[bit / 2 * 8 + bit % 2 + own_column] != 0) bad |= 1u << bit;
    }
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if ((visible[which] & bad) != 0)
        shared_.seen[threadIdx.x] |= 1u << (part * tile::kRowsPerLane + which);
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const Tile& tile_;
  Mask<kConfig.k_tile, kSpare> mask_;
  TilesOf<kConfig.k_tile> k_tiles_;
  TilesOf<kConfig.k_tile> v_tiles_;
  std::int32_t inside_ = 0;  // tiles of K and V that are copied the shortest way
  std::uint32_t copied_;   // where the thread's first chunk goes in the first stage of K
  std::uint32_t k_start_;  // where the lane's operands of K begin there, and those of V
  std::uint32_t v_start_;
  bool careful_ = false;
  std::uint32_t q_[kConfig.q_registers ? kSteps : 1][kParts][4];
  float out_[kParts][kOut];
  tile::RowStates states_[kParts];
};

// kCode stands for a configuration (encode()).
template <std::uint32_t kCode>
__global__ void __launch_bounds__(decode(kCode).threads(), decode(kCode).blocks)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = decode(kCode);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  // A packed batch may have less work than the host's bound.
  if (parameters.problem.q_packed &&
      static_cast<std::int32_t>(blockIdx.x) >= parameters.packed.count())
    return;
  if (threadIdx.x == 0) {
    find_tile(parameters, static_cast<std::int32_t>(blockIdx.x), kConfig.q_tile(), shared.tile);
  }
  __syncthreads();
  Forward<kConfig>(parameters, shared).run();
}

template <KernelConfig kConfig>
struct Launch {
  static constexpr int kBytes = sizeof(Shared<kConfig>);

  static cudaError_t load() { return cuda::load(forward_kernel<encode(kConfig)>, kBytes); }
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream) {
    return launch(forward_kernel<encode(kConfig)>, {blocks, kConfig.threads(), kBytes}, stream,
                  parameters);
  }
  static constexpr Instance instance() { return {kConfig, load, start}; }
};

// The kernel of a row of the table.
template <bool kFp16, int kRow>
constexpr Instance table_instance() {
  constexpr KernelConfig kConfig = kTiles[kRow].config(kFp16);
  static_assert(Launch<kConfig>::kBytes <= kTiles[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return Launch<kConfig>::instance();
}

}  // namespace tilewise::cuda::sm80
