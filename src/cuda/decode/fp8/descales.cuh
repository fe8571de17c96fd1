// The scales of fp8 (docs/semantics.md, "fp8") while a warp attends. Scores are multiplied by those
// of Q and K. The product of probs and a tile's values is multiplied by the values' scale relative
// to the largest one so far, which is the unit of out: no unit is so small that out overflows.
//
// A tile lies within a block of 128 keys, unless it belongs to a packed sequence that begins within
// a block. Such a tile has a second scale, from the block's first key on.
#pragma once

#include "cuda/decode/segment_rows.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
class Descales {
 public:
  __device__ __forceinline__ Descales(const problem::Problem& problem, const Segment& segment)
      : problem_(problem), segment_(segment) {}

  __device__ __forceinline__ void begin() { unit_ = 0x1p-126f; }

  // Reads the scales of the tile that begins at `key`.
  __device__ __forceinline__ void load(std::int32_t key) {
    keys_ = scale(problem_.k, key);
    values_ = scale(problem_.v, key);
  }

  // row_scales: the lane's first row of Q; its other one is 8 rows further on
  template <int kCount>
  __device__ __forceinline__ void scale_scores(std::int32_t key, const float* row_scales,
                                               float (&scores)[kCount]) const {
    const float first[] = {product(row_scales[0], keys_), product(row_scales[8], keys_)};
    const std::int32_t split = split_of(key);
    if (split >= kConfig.keys) return tile::scale_rows(scores, first);
    const float other = scale(problem_.k, key + split);
    const float second[] = {product(row_scales[0], other), product(row_scales[8], other)};
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int which = tile::register_row(r);
      scores[r] *= column(r) < split ? first[which] : second[which];
    }
  }

  // Takes the unit of out for the tile, and changes out to it. Of a tile with two scales the probs
  // take the scales.
  template <int kCount, int kOut>
  __device__ __forceinline__ void scale_probs(std::int32_t key, float (&probs)[kCount],
                                              float (&out)[kOut]) {
    const std::int32_t split = split_of(key);
    if (split >= kConfig.keys) {
      raise_unit(fabsf(values_), out);
      factor_ = values_ / unit_;
      return;
    }
    const float other = scale(problem_.v, key + split);
    raise_unit(fmaxf(fabsf(values_), fabsf(other)), out);
    const float first = values_ / unit_;
    const float second = other / unit_;
#pragma unroll
    for (int r = 0; r < kCount; ++r) probs[r] *= column(r) < split ? first : second;
    factor_ = 1;
  }

  // The factor of the product of the tile.
  __device__ __forceinline__ float value_factor() const { return factor_; }
  __device__ __forceinline__ float value_unit() const { return unit_; }

 private:
  // The first key of a tile that has the second scale, or a number of at least kConfig.keys.
  __device__ __forceinline__ std::int32_t split_of(std::int32_t key) const {
    constexpr auto kBlock = static_cast<std::int32_t>(problem::kDescaleRows);
    static_assert(kBlock % kConfig.keys == 0);
    const auto start = static_cast<std::int32_t>(segment_.sequence.k_start % kBlock);
    return kBlock - (start + key) % kBlock;
  }

  // A key that no row sees, before or after the others, gets the scale of the nearest key that is
  // seen.
  __device__ __forceinline__ float scale(const problem::View& view, std::int32_t key) const {
    const std::int64_t last = problem_.k_rows - 1;  // an empty sequence may begin after it
    if (last < 0) return 1;
    const tile::Range& keys = segment_.keys;
    const std::int32_t seen = math::max(math::min(key, keys.end - 1), keys.begin);
    return problem_.descale(view, segment_.sequence.batch, segment_.kv_head,
                            math::min(segment_.sequence.k_start + seen, last));
  }

  // Finite for finite scales: a score of 0 stays 0.
  __device__ __forceinline__ static float product(float a, float b) {
    constexpr float kLargest = 0x1.fffffep127f;
    return ptx::min_nan(a * b, kLargest);
  }

  template <int kOut>
  __device__ __forceinline__ void raise_unit(float scale, float (&out)[kOut]) {
    if (!(scale > unit_)) return;
    const float factor = unit_ / scale;
#pragma unroll
    for (float& x : out) x *= factor;
    unit_ = scale;
  }

  // The column of the tile that register r of a fragment belongs to.
  __device__ __forceinline__ static std::int32_t column(int r) {
    return tile::register_column(r) + tile::lane_column(static_cast<int>(threadIdx.x) % 32);
  }

  const problem::Problem& problem_;
  const Segment& segment_;
  float keys_;
  float values_;
  float factor_;
  float unit_;
};

}  // namespace tilewise::cuda::decode
