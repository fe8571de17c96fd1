// The forward kernel for fp32: FlashAttention-2 (arXiv 2307.08691), Algorithm 1, with
// multiply-adds. A block computes one tile of queries; its warps share K and V and split the rows.
#pragma once

#include "cuda/forward/fp32/epilogue.cuh"
#include "cuda/forward/fp32/loader.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/sm80/mask_table.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/score_mod.cuh"
#include "math/philox.h"

namespace tilewise::cuda::fp32 {

template <KernelConfig kConfig>
class Forward {
 public:
  static constexpr int kKeys = kConfig.thread_keys();
  static constexpr int kScores = kThreadRows * kKeys;
  static constexpr int kColumns = kConfig.thread_columns();
  static constexpr int kRuns = kColumns / kVector;  // of adjacent columns of out
  static constexpr int kRow = kConfig.row();
  static constexpr int kChunkRow = kConfig.chunk_row();
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kTile = kConfig.k_tile;
  using Scores = ScoreLayout<kKeys>;
  using KeyTiles = Tiles<kTile, kConfig.columns, kRow, kThreads, kKeys>;
  using ValueTiles = Tiles<kTile, kConfig.columns, kConfig.columns, kThreads, 1>;

  __device__ Forward(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask),
        k_tiles_(tile_.k),
        v_tiles_(tile_.v),
        k_place_(ptx::opaque(ptx::shared_address(shared.k) + KeyTiles::place())),
        v_place_(ptx::opaque(ptx::shared_address(shared.v) + ValueTiles::place())) {}

  __device__ __forceinline__ void run() {
    load_tile<kConfig.q_tile(), kConfig.columns, kRow, kThreads, 1>(tile_.q, tile_.first,
                                                                    shared_.q);
    ptx::cp_async_commit();
    if (threadIdx.x < 32) mask_.gather();
    if (threadIdx.x == 0) shared_.non_finite_pass = false;
    __syncthreads();
    Epilogue<kConfig> epilogue(parameters_, shared_, out_, states_);
    bool again;
    do {
      attend();
      const bool was_non_finite_pass = shared_.non_finite_pass;
      again = __syncthreads_or(epilogue.has_non_finite()) && !was_non_finite_pass;
      if (again) begin_careful_pass();
    } while (again);
    epilogue.finish();
  }

 private:
  // out and the states of its rows, keys from the last to the first. The non_finite_pass pass takes
  // operands that are not finite for zero and notes the rows that see one; all other rows get the
  // same bits.
  __device__ __forceinline__ void attend() {
    clear();
    careful_ = shared_.non_finite_pass;
    const sm80::TileRanges tiles = shared_.mask.tiles;
    std::int32_t key = mask_.last();
    if (key < 0) return ptx::cp_async_wait<0>();
    load_k(key);
    while (key >= 0) {
      const std::int32_t next = mask_.before(tiles, key);
      exchange();  // K is there and nobody reads V any more
      load_v(key);
      const tile::TileClass kind = mask_.kind(tiles, key);
      if (kConfig.score_mod || kind != tile::kFull || careful_) {
        step<true>(key, kind, next);
      } else {
        step<false>(key, kind, next);
      }
      key = next;
    }
  }

  // A tile of keys: Algorithm 1, lines 8 to 10. `kMasked`: a mask or a score rule is to be applied.
  template <bool kMasked>
  __device__ __forceinline__ void step(std::int32_t key, tile::TileClass kind, std::int32_t next) {
    if (kMasked && careful_) clean_operands();
    float scores[kScores];
    multiply_scores(scores);
    if constexpr (kMasked) apply_rules(key, kind, scores);
    weigh(scores);
    if constexpr (kConfig.score_mod) drop_probs(key, scores);
    exchange();  // V is there and nobody reads K any more
    if (next >= 0) load_k(next);
    multiply_values(scores);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      states_[i] = math::empty_state<float>();
#pragma unroll
      for (float& x : out_[i]) x = 0;
    }
  }

  __device__ __forceinline__ void load_k(std::int32_t key) {
    k_tiles_.load(key, shared_.k, k_place_);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void load_v(std::int32_t key) {
    v_tiles_.load(key, shared_.v, v_place_);
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void exchange() {
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  __device__ __forceinline__ int warp_row() const {
    return static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  }
  // The lane's first row, of the sequence.
  __device__ __forceinline__ std::int32_t lane_row() const {
    return tile_.first + warp_row() + fp32::lane_row(threadIdx.x % 32, 0);
  }
  // The lane's first key, of the sequence.
  __device__ __forceinline__ std::int32_t lane_key(std::int32_t key) const {
    return key * kTile + lane_across(threadIdx.x % 32) * kKeys;
  }

  // scores = Q K^T, four columns of both at a time, as many as there are.
  __device__ __forceinline__ void multiply_scores(float (&scores)[kScores]) {
    const int lane = threadIdx.x % 32;
    const float* q = shared_.q + (warp_row() + fp32::lane_row(lane, 0)) * kRow;
    const float* k = shared_.k + lane_across(lane) * kRow;
    const float* const end = q + tile_.k.columns;
#pragma unroll
    for (float& x : scores) x = 0;
#pragma unroll 2
    for (; q < end; q += kVector, k += kVector) {
      float4 keys[kKeys];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) keys[n] = load_vector(k + n * kAcross * kRow);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 query = load_vector(q + 2 * i * kRow);
#pragma unroll
        for (int n = 0; n < kKeys; ++n) add_product(query, keys[n], scores[i * kKeys + n]);
      }
    }
  }
  __device__ __forceinline__ static float4 load_vector(const float* from) {
    return *reinterpret_cast<const float4*>(from);
  }
  __device__ __forceinline__ static void add_product(const float4& a, const float4& b, float& sum) {
    sum = math::multiply_add(a.x, b.x, sum);
    sum = math::multiply_add(a.y, b.y, sum);
    sum = math::multiply_add(a.z, b.z, sum);
    sum = math::multiply_add(a.w, b.w, sum);
  }

  // From products to scores: score rule and mask.
  __device__ __forceinline__ void apply_rules(std::int32_t key, tile::TileClass kind,
                                              float (&scores)[kScores]) {
    const std::int32_t row = lane_row();
    const std::int32_t own_key = lane_key(key);
    std::uint32_t visible[kThreadRows];
    if (kind != tile::kFull) {
      mask_.see(row, Scores::row_offset(kKeys), tile::AdjacentColumns{own_key, kKeys}, visible);
    } else {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i)
        visible[i] = row + Scores::row_offset(i * kKeys) <= tile_.last ? ~0u : 0u;
    }
    if constexpr (kConfig.score_mod) {
      const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                            static_cast<std::int32_t>(tile_.sequence.diagonal));
      tile::apply_score_mod<Scores, tile::ExactSoftcap>(parameters_.problem, parameters_.scaling,
                                                        parameters_.pair_loads, head, row, own_key,
                                                        scores, visible);
    }
    tile::apply_mask_bits<Scores>(scores, visible);
    if (careful_) note_non_finite_keys(visible);
  }

  // Scores become probs exp(score - max), their sums go to the states, and what there is is
  // brought to the new maximum. The exponent is one fused product, score * scale_log2 - max *
  // scale_log2, with the second one rounded once: all of a row is off by one factor, which cancels;
  // in lse it is half an ulp.
  __device__ __forceinline__ void weigh(float (&scores)[kScores]) {
    const float scale_log2 = parameters_.scale_log2;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float* const row = &scores[i * kKeys];
      float max = row[0];
#pragma unroll
      for (int n = 1; n < kKeys; ++n) max = fmaxf(max, row[n]);
#pragma unroll
      for (int step = 1; step < kAcross; step *= 2) {
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
      }
      math::SoftmaxState<float>& state = states_[i];
      max = fmaxf(max, state.max);
      const float anchor = __fmul_rn(math::anchor(max), scale_log2);
      const float factor = exp2f(__fmul_rn(state.max, scale_log2) - anchor);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        row[n] = exp2f(__fmaf_rn(row[n], scale_log2, -anchor));
        sum += row[n];
      }
      state = {max, math::multiply_add(state.sum, factor, sum)};
#pragma unroll
      for (float& x : out_[i]) x *= factor;
    }
  }

  // Kept probs grow here, not with the row: at the end, 1 / (1 - p) would multiply the rounding
  // of sums that are denormal.
  __device__ __forceinline__ void drop_probs(std::int32_t key, float (&probs)[kScores]) {
    const Problem& problem = parameters_.problem;
    if (problem.dropout_p == 0) return;
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    const float opaque = static_cast<float>(rule.keep_scale);
    const std::int64_t head = tile_.sequence.batch * problem.heads + tile_.head;
    const std::int32_t own_key = lane_key(key);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      // One draw has the words of 4 columns, of which the thread's are some.
      const math::Philox4 words = math::dropout_words(
          rule, head, lane_row() + Scores::row_offset(i * kKeys), own_key / kVector);
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        const std::uint32_t word = kKeys == kVector ? words.word[n] : word_of(words, own_key + n);
        float& prob = probs[i * kKeys + n];
        prob = word < rule.threshold ? 0 : prob * opaque;
      }
    }
  }

  // The word of a column. An index would put the words into local memory.
  __device__ __forceinline__ static std::uint32_t word_of(const math::Philox4& words,
                                                          std::int32_t column) {
    const std::uint32_t low = column % 2 == 0 ? words.word[0] : words.word[1];
    const std::uint32_t high = column % 2 == 0 ? words.word[2] : words.word[3];
    return column / 2 % 2 == 0 ? low : high;
  }

  // out += probs V, a chunk of keys at a time through the warp's own memory.
  __device__ __forceinline__ void multiply_values(const float (&probs)[kScores]) {
    constexpr int kChunk = kConfig.chunk();
    float* const memory = shared_.probs + warp_row() * kChunkRow;
#pragma unroll 1
    for (int chunk = 0; chunk < kTile; chunk += kChunk) {
      __syncwarp();
      store_weights(probs, chunk, memory);
      __syncwarp();
      multiply_chunk(memory, shared_.v + chunk * kConfig.columns);
    }
  }

  // Those of the keys [chunk, chunk + kChunk) of the tile.
  __device__ __forceinline__ void store_weights(const float (&probs)[kScores], int chunk,
                                                float* memory) {
    const int lane = threadIdx.x % 32;
    const int place = lane_across(lane) * kKeys - chunk;
    if (place < 0 || place >= kConfig.chunk()) return;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float* const to = memory + fp32::lane_row(lane, i) * kChunkRow + place;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) to[n] = probs[i * kKeys + n];
    }
  }

  __device__ __forceinline__ void multiply_chunk(const float* memory, const float* values) {
    const int lane = threadIdx.x % 32;
    const float* const own_weights = memory + fp32::lane_row(lane, 0) * kChunkRow;
    const float* const own_values = values + lane_run(lane, 0);
#pragma unroll 2
    for (int key = 0; key < kConfig.chunk(); key += kVector) {
      float probs[kThreadRows][kVector];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 four = load_vector(own_weights + 2 * i * kChunkRow + key);
        probs[i][0] = four.x, probs[i][1] = four.y;
        probs[i][2] = four.z, probs[i][3] = four.w;
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
#pragma unroll
        for (int m = 0; m < kRuns; ++m) {
          const float4 value =
              load_vector(own_values + (key + j) * kConfig.columns + m * kAcross * kVector);
#pragma unroll
          for (int i = 0; i < kThreadRows; ++i) {
            add_vector(probs[i][j], value, &out_[i][m * kVector]);
          }
        }
      }
    }
  }
  __device__ __forceinline__ static void add_vector(float prob, const float4& value, float* sum) {
    sum[0] = math::multiply_add(prob, value.x, sum[0]);
    sum[1] = math::multiply_add(prob, value.y, sum[1]);
    sum[2] = math::multiply_add(prob, value.z, sum[2]);
    sum[3] = math::multiply_add(prob, value.w, sum[3]);
  }

  // ---- the non_finite_pass pass ----

  __device__ void begin_careful_pass() {
    shared_.non_finite_pass = true;
    shared_.seen[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < kConfig.q_tile(); i += kThreads) shared_.non_finite_row[i] = 0;
    __syncthreads();
    clean_tile<kConfig.q_tile(), kConfig.columns, kRow, kThreads, 1>(shared_.q,
                                                                     shared_.non_finite_row);
    __syncthreads();
  }

  // Operands of K and V that are not finite become zero; both are there afterwards.
  __device__ __forceinline__ void clean_operands() {
    for (int i = threadIdx.x; i < kTile; i += kThreads) shared_.non_finite_key[i] = 0;
    exchange();
    clean_tile<kTile, kConfig.columns, kRow, kThreads, kKeys>(shared_.k, shared_.non_finite_key);
    clean_tile<kTile, kConfig.columns, kConfig.columns, kThreads, 1>(shared_.v,
                                                                     shared_.non_finite_key);
    __syncthreads();
  }
  __device__ __forceinline__ void note_non_finite_keys(
      const std::uint32_t (&visible)[kThreadRows]) {
    std::uint32_t non_finite = 0;
    for (int n = 0; n < kKeys; ++n) {
      if (shared_.non_finite_key[lane_across(threadIdx.x % 32) * kKeys + n] != 0)
        non_finite |= 1u << n;
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if ((visible[i] & non_finite) != 0) shared_.seen[threadIdx.x] |= 1u << i;
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const Tile& tile_;
  sm80::Mask<kTile> mask_;
  KeyTiles k_tiles_;
  ValueTiles v_tiles_;
  std::uint32_t k_place_;  // where the thread's first chunk of a tile goes
  std::uint32_t v_place_;
  bool careful_ = false;
  float out_[kThreadRows][kColumns];               // (rows, runs of 4 columns)
  math::SoftmaxState<float> states_[kThreadRows];  // `sum` is this lane's part of it
};

// The kernel of a row of the table. nvcc 13 gives a kernel whose template parameter is a struct a
// name that does not compile, so the row stands for it.
template <int kRow>
__global__ void __launch_bounds__(kKernels[kRow].config().threads(), kKernels[kRow].config().blocks)
    forward_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config();
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  // A packed batch may have less work than the host's bound.
  if (parameters.problem.q_packed &&
      static_cast<std::int32_t>(blockIdx.x) >= parameters.packed.count())
    return;
  if (threadIdx.x == 0) {
    sm80::find_tile(parameters, static_cast<std::int32_t>(blockIdx.x), kConfig.q_tile(),
                    shared.tile);
  }
  __syncthreads();
  Forward<kConfig>(parameters, shared).run();
}

template <int kRow>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config()>);

template <int kRow>
cudaError_t ForwardKernel<kRow>::load() {
  static_assert(kSharedBytes<kRow> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(forward_kernel<kRow>, kSharedBytes<kRow>);
}

template <int kRow>
cudaError_t ForwardKernel<kRow>::start(const Parameters& parameters, std::int64_t blocks,
                                       cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config().threads();
  return launch(forward_kernel<kRow>, {blocks, kThreads, kSharedBytes<kRow>}, stream, parameters);
}

}  // namespace tilewise::cuda::fp32
