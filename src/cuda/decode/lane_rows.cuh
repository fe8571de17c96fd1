// The two rows of queries of a lane: which query of which head each of them is, what it sees, and
// what its scores are.
#pragma once

#include "cuda/decode/work.cuh"
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
  return {segment.kv_head * static_cast<std::int32_t>(parameters.problem.group) + index / q_len,
          index % q_len};
}

struct LaneRows {
  QueryRow row[tile::kRowsPerLane];
  float slope[tile::kRowsPerLane];  // of ALiBi

  // `first`: the warp's first row in the segment. Rows after the last one are copies of it.
  __device__ __forceinline__ void set(const Parameters& parameters, const Segment& segment,
                                      std::int32_t first) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const std::int32_t own = first + tile::lane_row(static_cast<int>(threadIdx.x) % 32, which);
      row[which] = query_row(parameters, segment, math::min(own, segment.rows - 1));
      slope[which] =
          parameters.has_score_mod
              ? tile::slope_of(parameters.problem, segment.sequence.batch, row[which].head)
              : 0;
    }
  }

  // Turns products into scores, and those of masked keys into -infinity. `key`: the tile's first.
  template <int kCount>
  __device__ __forceinline__ void apply(const Parameters& parameters, const Segment& segment,
                                        std::int32_t key, float (&scores)[kCount]) const {
    const tile::FragmentColumns columns = {key,
                                           tile::lane_column(static_cast<int>(threadIdx.x) % 32)};
    std::uint32_t visible[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      visible[which] = tile::low_bits(columns(segment.band.end(row[which].query))) &
                       ~tile::low_bits(columns(segment.band.begin(row[which].query)));
    }
    if (parameters.has_score_mod) apply_score_mod(parameters, segment, key, visible, scores);
    tile::apply_mask_bits<tile::FragmentLayout>(scores, visible);
  }

 private:
  // Scale, softcap, bias, ALiBi and the boolean mask, which clears bits of `visible`.
  template <int kCount>
  __device__ __forceinline__ void apply_score_mod(const Parameters& parameters,
                                                  const Segment& segment, std::int32_t key,
                                                  std::uint32_t (&visible)[tile::kRowsPerLane],
                                                  float (&scores)[kCount]) const {
    const problem::Problem& problem = parameters.problem;
    tile::scale_products<tile::Softcap, kCount>(parameters.scaling, scores);
    const std::int32_t first = key + tile::lane_column(static_cast<int>(threadIdx.x) % 32);
    const std::int64_t batch = segment.sequence.batch;
    const auto diagonal = static_cast<std::int32_t>(segment.sequence.diagonal);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int which = tile::register_row(r);
      const std::uint32_t bit = 1u << tile::FragmentLayout::bit(r);
      const QueryRow& own = row[which];
      const std::int32_t column = first + tile::register_column(r);
      if (problem.mask.present() && (visible[which] & bit) != 0) {
        const std::int64_t offset = problem.mask.offset(batch, own.head, own.query, column);
        if (static_cast<const std::uint8_t*>(problem.mask.data)[offset] == 0)
          visible[which] &= ~bit;
      }
      if (problem.bias.present() && (visible[which] & bit) != 0) {
        scores[r] +=
            tile::read_bias(problem.bias, problem.bias.offset(batch, own.head, own.query, column));
      }
      if (slope[which] != 0) {
        scores[r] += math::alibi(slope[which], static_cast<float>(own.query + diagonal - column));
      }
    }
  }
};

}  // namespace tilewise::cuda::decode
