// The rows of a segment: which query of which head each of them is, what it sees, and what its
// scores are.
#pragma once

#include "cuda/decode/segment.h"
#include "cuda/decode/unified.cuh"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::decode {

// Query `query` of query head `head`.
struct QueryRow {
  std::int32_t head;
  std::int32_t query;
};

// Row `row` of a segment.
__device__ __forceinline__ QueryRow query_row(const Parameters& parameters, const Segment& segment,
                                              std::int32_t row) {
  const auto q_len = static_cast<std::int32_t>(segment.sequence.q_len);
  const std::int32_t index = segment.first_row + row;
  return {segment.kv_head * parameters.group + index / q_len, index % q_len};
}

// A row of a segment, with its slope of ALiBi, and phi in the units of a max.
struct SegmentRow : QueryRow {
  float slope;
  float phi;
};

// `row`: rows after the last one of the segment are copies of it.
template <bool kAtPhi>
__device__ __forceinline__ SegmentRow segment_row(const Parameters& parameters,
                                                  const Segment& segment, std::int32_t row) {
  const QueryRow own = query_row(parameters, segment, math::min(row, segment.rows - 1));
  const float slope = parameters.has_score_mod
                          ? tile::slope_of(parameters.problem, segment.sequence.batch, own.head)
                          : 0;
  return {own, slope, kAtPhi ? phi_of_head(parameters, own.head) : 0};
}

// Scale, softcap, bias, ALiBi and the boolean mask, which clears bits of `visible`. `key`: the
// lane's first.
template <class Cap, int kCount>
__device__ __forceinline__ void apply_score_mod(const Parameters& parameters,
                                                const Segment& segment, const SegmentRow* rows,
                                                std::int32_t key,
                                                std::uint32_t (&visible)[tile::kRowsPerLane],
                                                float (&scores)[kCount]) {
  const problem::Problem& problem = parameters.problem;
  tile::scale_products<Cap, kCount>(parameters.scaling, scores);
  const std::int64_t batch = segment.sequence.batch;
  const auto diagonal = static_cast<std::int32_t>(segment.sequence.diagonal);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const int which = tile::register_row(r);
    const std::uint32_t bit = 1u << tile::FragmentLayout::bit(r);
    const SegmentRow& own = rows[8 * which];
    const std::int32_t column = key + tile::register_column(r);
    if (problem.mask.present() && (visible[which] & bit) != 0) {
      const std::int64_t offset = problem.mask.offset(batch, own.head, own.query, column);
      if (static_cast<const std::uint8_t*>(problem.mask.data)[offset] == 0) visible[which] &= ~bit;
    }
    if (problem.bias.present() && (visible[which] & bit) != 0) {
      scores[r] +=
          tile::read_bias(problem.bias, problem.bias.offset(batch, own.head, own.query, column));
    }
    if (own.slope != 0)
      scores[r] += math::alibi(own.slope, static_cast<float>(own.query + diagonal - column));
  }
}

// Turns the products of a lane into scores, and those of masked keys into -infinity.
//   rows: the lane's first row; its other one is 8 rows further on
//   key: the first of the tile
template <class Cap, int kCount>
__device__ __forceinline__ void apply_score_mod_and_mask(const Parameters& parameters,
                                                         const Segment& segment,
                                                         const SegmentRow* rows, std::int32_t key,
                                                         float (&scores)[kCount]) {
  const std::int32_t first = key + tile::lane_column(static_cast<int>(threadIdx.x) % 32);
  const tile::FragmentColumns columns = {key, first - key};
  std::uint32_t visible[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    const std::int32_t query = rows[8 * which].query;
    visible[which] = tile::low_bits(columns(segment.band.end(query))) &
                     ~tile::low_bits(columns(segment.band.begin(query)));
  }
  if (parameters.has_score_mod)
    apply_score_mod<Cap>(parameters, segment, rows, first, visible, scores);
  tile::apply_mask_bits<tile::FragmentLayout>(scores, visible);
}

}  // namespace tilewise::cuda::decode
