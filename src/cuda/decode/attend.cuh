// A part of a segment: a warp attends with its 16 rows to the tiles of keys of its group.
#pragma once

#include "cuda/decode/fp32/gemm.cuh"
#include "cuda/decode/fp8/descales.cuh"
#include "cuda/decode/gemm.cuh"
#include "cuda/decode/key_ring.cuh"
#include "cuda/decode/segment_rows.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/sm80/large_values.cuh"
#include "cuda/tile/exact_max.cuh"
#include "cuda/tile/slow_path.cuh"

namespace tilewise::cuda::decode {

// The tiles of keys [begin, end) of a segment.
struct Part {
  std::int32_t begin;
  std::int32_t end;
};

template <KernelConfig kConfig>
class Attend {
 public:
  static constexpr int kScores = kConfig.keys / 2;  // registers
  static constexpr int kOut = kConfig.columns / 2;
  static constexpr int kSteps = kConfig.columns / 16;
  static constexpr int kKeySteps = kConfig.keys / 16;
  using Gemm = decode::Gemm<kConfig>;
  using Ring = KeyRing<kConfig>;
  using Layout = typename Ring::Layout;
  using Element = typename Ring::Element;
  using Large = std::conditional_t<kConfig.fp32, float, std::uint16_t>;  // no fp8 is large
  using Cap = std::conditional_t<kConfig.fp32, tile::ExactSoftcap, tile::Softcap>;

  __device__ Attend(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        ring_(parameters, shared),
        descales_(parameters.problem, shared.segment) {}

  // The warp's first row in the segment.
  __device__ __forceinline__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 % kConfig.row_warps * 16;
  }

  // Starts to load the keys of a part.
  __device__ __forceinline__ void start(const Part& part) {
    ring_.start(first_key(part.begin), part.end - part.begin);
  }

  // After start(): computes out and the states of the warp's rows. Q is in shared memory.
  __device__ __forceinline__ void run(const Part& part) {
    shift_ = 0;
    if constexpr (kConfig.at_phi) {
      attend<true>(part);
      served_ = !ring_.any_of_group(has_unsafe_row(part));
      if (served_) return end_at_phi();
      if (Ring::thread() == 0) count_fallback(parameters_);
      start(part);
    }
    attend<false>(part);
    if constexpr (!kConfig.fp16) {
      if (!ring_.any_of_group(shift_ == 0 && has_non_finite_out())) return;
      count(tile::SlowPath::kScannedValues);
      if (!ring_.any_of_group(hold_large(part))) return;
      count(tile::SlowPath::kSecondPass);
      set_shift();
      start(part);
      attend<false>(part);
    }
  }

  // The state of one of the lane's rows after run(), the same in the four lanes of the row.
  __device__ __forceinline__ RowState state(int which) const {
    const math::SoftmaxState<float>& own = states_.row[which];
    return {own.max, own.sum * math::power_of_two(shift_)};
  }
  // The factor that makes a number of out one relative to state().
  __device__ __forceinline__ float out_scale(int which) const {
    return kConfig.at_phi && served_ ? out_scale_[which] : scale_at_maxima(which);
  }
  __device__ __forceinline__ const float (&out() const)[kOut] { return out_; }
  // The factor of all numbers of out after out_scale(): the largest scale of V in fp8.
  __device__ __forceinline__ float value_unit() const {
    if constexpr (kConfig.fp8) return descales_.value_unit();
    return 1;
  }

 private:
  __device__ __forceinline__ static void count(tile::SlowPath path) {
    if (Ring::thread() == 0) tile::count_slow_path(path);
  }

  __device__ __forceinline__ std::int32_t first_key(std::int32_t key_tile) const {
    return key_tile * kConfig.block_keys() + Ring::group() * kConfig.keys;
  }

  // kAtPhi: the anchor of every row is phi; otherwise it is the maximum so far.
  template <bool kAtPhi>
  __device__ __forceinline__ void attend(const Part& part) {
    states_.clear();
    if constexpr (kAtPhi) begin_at_phi();
    if constexpr (kConfig.fp8) descales_.begin();
#pragma unroll
    for (float& x : out_) x = 0;
#pragma unroll 1
    for (std::int32_t key_tile = part.begin; key_tile < part.end; ++key_tile)
      step<kAtPhi>(key_tile, shift_ == 0 && key_tile == part.begin);
    Ring::finish();
#pragma unroll
    for (math::SoftmaxState<float>& state : states_.row) state.sum = tile::quad_sum(state.sum);
  }

  // A tile of keys: FlashAttention-2 (arXiv 2307.08691), Algorithm 1, lines 8 to 10.
  template <bool kAtPhi>
  __device__ __forceinline__ void step(std::int32_t key_tile, bool is_first) {
    const std::int32_t key = first_key(key_tile);
    const bool hides_keys = may_hide_keys(key);
    float scores[kScores];
    if constexpr (kConfig.fp8) descales_.load(key);
    multiply_qk(ring_.template next<true>(), scores);
    if constexpr (kConfig.fp8) descales_.scale_scores(key, shared_.row_scales + lane_row(), scores);
    if (hides_keys || parameters_.has_score_mod)
      apply_score_mod_and_mask<Cap>(parameters_, shared_.segment, lane_rows(), key, scores);
    tile::ExactMax update = {};
    if constexpr (kAtPhi) {
      update.anchors = tile::anchors_of(states_, parameters_.scale_log2);
    } else {
      update = tile::update_exact_max(tile::row_max_of(scores), states_, parameters_.scale_log2);
    }
    const std::uint32_t values = ring_.template next<false>();
    if constexpr (!kAtPhi) {
      if (!kConfig.fp16 && is_first && begins_large(values)) set_shift();
      const bool careful = __any_sync(~0u, shift_ > 0 || update.reaches(tile::kHugeExactAnchor));
      if (careful || __any_sync(~0u, update.has_grown(states_))) rescale(update);
      if (careful)
        tile::rebase_scores(scores, states_, shift_, update.anchors, tile::kHugeExactAnchor);
    }
    const std::uint32_t visible[tile::kRowsPerLane] = {visible_keys(scores, 0),
                                                       visible_keys(scores, 1)};
    tile::add_sums(tile::exp2_scores(scores, update.anchors, parameters_.scale_log2),
                   update.anchors, states_);
    if constexpr (kConfig.fp32) {
      if (hides_keys) {
        Fp32Gemm<kConfig>::template add_pv<true>(values, visible, scores, out_);
      } else {
        Fp32Gemm<kConfig>::template add_pv<false>(values, visible, scores, out_);
      }
    } else {
      if constexpr (kConfig.fp8) descales_.scale_probs(key, scores, out_);
      std::uint32_t probs[kScores / 2];
      tile::pack_probs<kConfig.fp16>(scores, probs);
      if (hides_keys) {
        multiply_pv<true>(values, probs, visible);
      } else {
        multiply_pv<false>(values, probs, visible);
      }
      if constexpr (kAtPhi) add_rounded_sums(probs);
    }
  }

  // The lane's first row in the segment.
  __device__ __forceinline__ static int lane_row() {
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
    return thread / 32 % kConfig.row_warps * 16 + tile::lane_row(thread % 32, 0);
  }
  __device__ __forceinline__ const SegmentRow* lane_rows() const {
    return &shared_.rows[lane_row()];
  }

  // Whether a row of the segment may see less than the whole tile of keys.
  __device__ __forceinline__ bool may_hide_keys(std::int32_t key) const {
    const tile::Range& full = shared_.segment.full;
    return key < full.begin || key + kConfig.keys > full.end || parameters_.hides_keys;
  }

  // S = Q K^T
  __device__ __forceinline__ void multiply_qk(std::uint32_t keys, float (&scores)[kScores]) {
    if constexpr (kConfig.fp32) {
      return Fp32Gemm<kConfig>::multiply_qk(
          ptx::shared_address(shared_.q) + warp_row() * kConfig.row_bytes(), keys, scores);
    } else {
      multiply_16_bit_qk(keys, scores);
    }
  }
  __device__ __forceinline__ void multiply_16_bit_qk(std::uint32_t keys, float (&scores)[kScores]) {
    using QLayout = tile::LdmatrixTile<kConfig.columns>;
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x)) % 32;
    const std::uint32_t first_q =
        ptx::shared_address(shared_.q) +
        QLayout::place(warp_row() + tile::lane_row_first(lane), tile::lane_chunk_first(lane));
    const std::uint32_t first_k =
        keys + Layout::place(tile::lane_row_second(lane), tile::lane_chunk_second(lane));
#pragma unroll
    for (float& x : scores) x = 0;
    Gemm::add_qk(first_q, first_k, scores);
    if constexpr (kConfig.q_parts() == 2) {
      if (parameters_.q_parts == 2) Gemm::add_qk(first_q + kConfig.q_bytes(), first_k, scores);
    }
  }

  // O += P V. kHidesKeys: keys may be masked, and their elements of V that are not finite must not
  // reach the rows that do not see them: 0 * NaN is NaN.
  //   visible: a bit for each of the lane's columns, of its two rows
  template <bool kHidesKeys>
  __device__ __forceinline__ void multiply_pv(std::uint32_t values,
                                              const std::uint32_t (&probs)[kScores / 2],
                                              const std::uint32_t (&visible)[tile::kRowsPerLane]) {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x)) % 32;
    const std::uint32_t first =
        values + Layout::place(tile::lane_row_first(lane), tile::lane_chunk_first(lane));
    if constexpr (kConfig.fp8) {
      // The product of a tile is summed on its own: its values have a scale of their own.
#pragma unroll
      for (int load = 0; load < kSteps / Gemm::kLoadSteps; ++load) {
        float product[8 * Gemm::kLoadSteps] = {};
        float* const out = &out_[8 * Gemm::kLoadSteps * load];
#pragma unroll
        for (int step = 0; step < kKeySteps; ++step)
          Gemm::template add_pv<kHidesKeys>(first, step, load, probs, visible, product, out);
#pragma unroll
        for (int r = 0; r < 8 * Gemm::kLoadSteps; ++r)
          out[r] = __fmaf_rn(product[r], descales_.value_factor(), out[r]);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          float* const out = &out_[8 * n];
          Gemm::template add_pv<kHidesKeys>(first, step, n, probs, visible, out, out);
        }
      }
    }
  }

  __device__ __forceinline__ void rescale(const tile::ExactMax& update) {
    float factor[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      math::SoftmaxState<float>& state = states_.row[which];
      factor[which] = tile::exact_max_factor(update, which, state.max, parameters_.scale_log2);
      state.sum *= factor[which];
    }
    tile::scale_rows(out_, factor);
  }

  // The sum contains the rounding error of the anchor. In 16 bits, the rounded probs do not.
  __device__ __forceinline__ float scale_at_maxima(int which) const {
    const float shift = math::power_of_two(shift_);
    if constexpr (kConfig.fp32) return shift;
    return tile::exact_max_rounding_of(states_.row[which].max, parameters_.scale_log2) * shift;
  }

  // ---- phi as the anchor (unified.cuh) ----

  __device__ __forceinline__ void begin_at_phi() {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      states_.row[which].max = lane_rows()[8 * which].phi;
      out_scale_[which] = 0;
    }
  }

  // Adds up the rounded probs, which the products with V take. Rounding to 16 bits changes equal
  // probs by the same factor, which only this sum contains. Where the maximum is the anchor, the
  // largest probs are 1, and exact.
  __device__ __forceinline__ void add_rounded_sums(const std::uint32_t (&probs)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      out_scale_[tile::register_row(2 * i)] +=
          ptx::unpack<kConfig.fp16>(probs[i], 0) + ptx::unpack<kConfig.fp16>(probs[i], 1);
    }
  }

  // Whether phi has not served one of the lane's rows. Whole warps.
  __device__ __forceinline__ bool has_unsafe_row(const Part& part) const {
    float magnitude[tile::kRowsPerLane] = {};
#pragma unroll
    for (int r = 0; r < kOut; ++r) magnitude[tile::register_row(r)] += fabsf(out_[r]);
    bool found = false;
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const float all = tile::quad_sum(magnitude[which]);
      const float sum = states_.row[which].sum;
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const std::int32_t row = warp_row() + tile::lane_row(lane, which);
      if (row >= shared_.segment.rows || (sum == 0 && !sees_key(row, part))) continue;
      found |= !is_safe_row<kConfig.fp16>(sum, all, (part.end - part.begin) * kConfig.keys);
    }
    return found;
  }

  // Whether the bounds of the mask leave a row a key among those that the group has of a part.
  __device__ __forceinline__ bool sees_key(std::int32_t row, const Part& part) const {
    const std::int32_t query = shared_.rows[row].query;
    const std::int32_t begin = shared_.segment.band.begin(query);
    const std::int32_t end = shared_.segment.band.end(query);
    for (std::int32_t key_tile = part.begin; key_tile < part.end; ++key_tile) {
      const std::int32_t key = first_key(key_tile);
      if (math::max(key, begin) < math::min(key + kConfig.keys, end)) return true;
    }
    return false;
  }

  // A row without a key keeps the empty state.
  __device__ __forceinline__ void end_at_phi() {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      math::SoftmaxState<float>& state = states_.row[which];
      const float rounded = tile::quad_sum(out_scale_[which]);
      out_scale_[which] = state.sum == 0 ? 0 : state.sum / rounded;
      if (state.sum == 0) state = math::empty_state<float>();
    }
  }

  // ---- large values (sm80/large_values.cuh) ----

  __device__ __forceinline__ void set_shift() {
    shift_ = sm80::prob_shift(static_cast<std::int32_t>(shared_.segment.sequence.k_len));
  }

  // Whether the first row of a tile of V has a large number. It stands for all of V.
  __device__ __forceinline__ static bool begins_large(std::uint32_t values) {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x)) % 32;
    bool large = false;
    if (lane < Layout::kChunks)
      large = sm80::holds_large(ptx::ld_shared_v4(values + Layout::place(0, lane)), Large{});
    return __any_sync(~0u, large);
  }

  // Whether a row with a finite sum has a number of out that is not finite.
  __device__ __forceinline__ bool has_non_finite_out() const {
    float total[tile::kRowsPerLane] = {};
#pragma unroll
    for (int r = 0; r < kOut; ++r) total[tile::register_row(r)] += fabsf(out_[r]);
    bool found = false;
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      found |= !(total[which] < HUGE_VALF) && states_.row[which].sum < HUGE_VALF;
    return found;
  }

  // Whether the thread's chunks of V in a part hold a large number.
  // Many loads are in flight at a time.
  __device__ __forceinline__ bool hold_large(const Part& part) const {
    constexpr int kOfTile = kConfig.keys / Ring::kStep;
    constexpr int kLoads = kConfig.columns == 256 || kConfig.fp32 ? 4 : 16;
    const problem::View& view = parameters_.problem.v;
    const Element* const values = ring_.source(view);
    const tile::Range keys = shared_.segment.keys;
    if (Ring::column() >= parameters_.problem.value_dim) return false;
    const std::int32_t count = (part.end - part.begin) * kOfTile;
    bool large = false;
#pragma unroll 1
    for (std::int32_t first = 0; first < count; first += kLoads) {
      uint4 chunks[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const std::int32_t n = first + i;
        const std::int32_t key =
            first_key(part.begin + n / kOfTile) + Ring::row() + n % kOfTile * Ring::kStep;
        const std::int32_t inside = math::max(math::min(key, keys.end - 1), keys.begin);
        chunks[i] = *reinterpret_cast<const uint4*>(values + ring_.key_offset(view, inside));
      }
#pragma unroll
      for (const uint4& chunk : chunks) large |= sm80::holds_large(chunk, Large{});
    }
    return large;
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Ring ring_;
  float out_[kOut];
  tile::RowStates states_;
  bool served_;                          // phi has served the part
  float shift_ = 0;                      // probs are 2^-shift times as large
  float out_scale_[tile::kRowsPerLane];  // at phi; before the end of the pass: the rounded sums
  Descales<kConfig> descales_;           // of fp8
};

}  // namespace tilewise::cuda::decode
