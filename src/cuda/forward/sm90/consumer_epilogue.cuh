// A consumer's rows of out: finalised, and stored or staged for its epilogue warp.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"

namespace tilewise::cuda::sm90 {

// NOTE: D 256, three warpgroups and fp8 leave no registers in which the offsets could stay from
// tile to tile, so the compiler is told that they change.
template <KernelConfig kConfig>
__device__ __forceinline__ LaneOffsets Consumer<kConfig>::lane_offsets() const {
  std::uint32_t thread[] = {threadIdx.x % 128};
  if constexpr (kOut > 64 || kConfig.consumers() > 2 || kConfig.fp8) ptx::fence_operand(thread);
  const int warp = static_cast<int>(thread[0]) / 32;
  std::uint32_t stage;
  if constexpr (kConfig.stages_out_in_q()) {
    // The warp's rows of the first panel of the first stage of Q.
    stage = q_stage_address({}) + static_cast<std::uint32_t>(warp * kStageBytes);
  } else if constexpr (kConfig.has_epilogue_warps()) {
    stage = ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]) +
            static_cast<std::uint32_t>(warp * kStageBytes);
  } else {
    stage = ptx::shared_address(shared_.out.of_warp[warpgroup_ * 4 + warp]);
  }
  return lane_offsets_of(parameters_.problem, warpgroup_, static_cast<int>(thread[0]), stage);
}

// shift: of a careful tile, by which probs are smaller.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::finalise(const WorkTile& tile,
                                                            const tile::RowStates& states,
                                                            float shift) {
  if constexpr (kConfig.has_epilogue_warps()) {
    finalised_ = finalise_scales(parameters_, tile, states, shift);
  } else {
    finalised_ = finalise_rows<kConfig>(parameters_, tile, lane_offsets(), states, shift);
    if (__any_sync(~0u, finalised_.failed) && threadIdx.x % 32 == 0)
      report_failure(shared_.careful.reports, slot_ - 1, kFailedScores);
    const float(&scale)[tile::kRowsPerLane] = finalised_.scale;
    const bool all_nan = !__any_sync(~0u, scale[0] == scale[0] || scale[1] == scale[1]);
    if (threadIdx.x % 32 == 0) shared_.careful.all_nan[threadIdx.x / 32] = all_nan;
  }
}

// The rows of the query tile that is finalised, which is the one before tile_.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::write_out(const WorkTile& tile,
                                                             const float (&out)[kOut]) {
  if constexpr (kConfig.has_epilogue_warps()) {
    stage_output(tile, out, [](int) { return 0u; });
  } else {
    const LaneOffsets offsets = lane_offsets();
    const bool non_finite = store_out<kConfig>(parameters_, tile, offsets, out, finalised_);
    if (__any_sync(~0u, non_finite) && threadIdx.x % 32 == 0 &&
        !shared_.careful.all_nan[threadIdx.x / 32])
      report_failure(shared_.careful.reports, slot_ - 1, kNonFiniteOut);
  }
}

// P of a tile of scores while those rows are staged.
template <KernelConfig kConfig>
__device__ __forceinline__ tile::RowSums Consumer<kConfig>::exp2_during_staging(
    const WorkTile& tile, const tile::Anchors& anchors, Fragments& f) {
  constexpr int kParts = kOut / 8;
  tile::PartialSums sums;
  stage_output(tile, f.out, [&](int part) {
    tile::exp2_scores(f.scores, part, kParts, anchors, parameters_.scale_log2, sums);
    return sums.bits() & parameters_.zero;
  });
  return sums.row_sums();
}

// Stages rows for the epilogue warp, in the place of their Q or in one for all rows, once that is
// free.
template <KernelConfig kConfig>
template <class Overlapped>
__device__ __forceinline__ void Consumer<kConfig>::stage_output(const WorkTile& tile,
                                                                const float (&out)[kOut],
                                                                const Overlapped& overlapped) {
  const LaneOffsets offsets = lane_offsets();
  StageBarriers<1>& barriers = shared_.barriers.out[warpgroup_];
  std::uint32_t offset = 0;
  if constexpr (kConfig.stages_out_in_q()) {
    offset = state_after<kConfig.q_stages>(slot_ - 1).offset(kConfig.q_bytes());
  } else {
    ptx::mbarrier_wait(ptx::shared_address(&barriers.empty[0]), slot_ % 2);
  }
  const std::int32_t rows = tile.q_len - tile.row - offsets.row;
  bool non_finite = false;
  // Always, where a branch would separate the rows from what overlaps them.
  if (kConfig.lazy_max || !kConfig.scalar_stores || parameters_.vector_stores)
    non_finite = stage_rows<kConfig>(out, finalised_.scale, offsets.put + offset, rows, overlapped);
  if constexpr (kConfig.scalar_stores) {
    if (!parameters_.vector_stores) {
      const std::uint32_t stage = (offsets.get + offset) & ~(tile::kSwizzleBytes - 1u);
      non_finite = store_rows_scalar(
          out, finalised_.scale, stage, rows,
          tile.out + offsets.row * parameters_.problem.out.row * parameters_.out_bytes,
          parameters_);
    }
  }
  non_finite = __any_sync(~0u, non_finite);
  StagedOutput& staged = shared_.staged[warpgroup_];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const bool has_sums = lane % tile::kLanesPerRow == 0;
  if (has_sums) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      staged.rows[warp * tile::kWarpRows + tile::lane_row(lane, which)] = finalised_.sums[which];
  }
  if (lane == 0) staged.non_finite[warp] = non_finite;
  __syncwarp();
  if (has_sums) ptx::mbarrier_arrive(ptx::shared_address(&barriers.full[0]));
}

}  // namespace tilewise::cuda::sm90
