// The end of a part: the groups of a block merge their states, and the block stores the rows, as
// results if the part is the whole segment, else as the state of a part for combine.cu.
#pragma once

#include "cuda/decode/attend.cuh"
#include "cuda/decode/row_store.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
class Merge {
 public:
  static constexpr int kGroups = kConfig.groups();
  using Operands = KeyOperands<kConfig>;

  __device__ Merge(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  // `state`: the index of the part's first state; -1: the part is the whole segment. Between two
  // barriers; the ring is not in use.
  __device__ __forceinline__ void run(const Attend<kConfig>& attend, std::int64_t state) {
    publish_states(attend);
    __syncthreads();
    publish_out(attend, state < 0);
    __syncthreads();
    if (state < 0) {
      store_lse();
    } else {
      store_states(state);
    }
    store_rows(state);
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ void publish_states(const Attend<kConfig>& attend) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const int row = Attend<kConfig>::warp_row() + tile::lane_row(lane(), which);
      if (lane() % tile::kLanesPerRow == 0)
        shared_.states[KeyRing<kConfig>::group()][row] = attend.state(which);
    }
  }

  // The merged state of a row.
  __device__ __forceinline__ RowState merged(int row) const {
    RowState all = shared_.states[0][row];
#pragma unroll
    for (int group = 1; group < kGroups; ++group)
      all.max = fmaxf(all.max, shared_.states[group][row].max);
    float sum = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const RowState& own = shared_.states[group][row];
      sum += own.sum * merge_factor(own.max, all.max, parameters_.scale_log2);
    }
    return {all.max, sum};
  }

  __device__ __forceinline__ math::Finalised<float> finalised(const RowState& state,
                                                              float sink) const {
    return finalise(state, sink, parameters_.scale_log2, kConfig.fp32);
  }
  __device__ __forceinline__ float sink_of(int row) const {
    return decode::sink_of(parameters_.problem, query_row(parameters_, shared_.segment, row).head);
  }

  // Writes the warp's rows of out, normalised by the sums of all groups, to the ring's memory.
  __device__ __forceinline__ void publish_out(const Attend<kConfig>& attend, bool is_whole) {
    float scale[tile::kRowsPerLane];
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const int row = math::min(Attend<kConfig>::warp_row() + tile::lane_row(lane(), which),
                                shared_.segment.rows - 1);
      const RowState all = merged(row);
      const float none = -math::Limits<float>::kInfinity;
      scale[which] = finalised(all, is_whole ? sink_of(row) : none).scale *
                     merge_factor(attend.state(which).max, all.max, parameters_.scale_log2) *
                     attend.out_scale(which);
    }
    const std::uint32_t first = rows_address() + KeyRing<kConfig>::group() * kGroupBytes;
    // Places that are computed before the loop over keys would take registers there.
    const int own_lane =
        kConfig.fp8 || kConfig.fp32 ? static_cast<int>(ptx::opaque(threadIdx.x)) % 32 : lane();
#pragma unroll
    for (int pair = 0; pair < kConfig.columns / 4; ++pair) {
      const int which = pair % 2;
      const int row = Attend<kConfig>::warp_row() + tile::lane_row(own_lane, which);
      const int column = Operands::out_column(pair, own_lane);
      const auto number = [&](int i) {
        const float own = attend.out()[Operands::out_register(pair, i)] * scale[which];
        return kConfig.fp8 ? own * attend.value_unit() : own;
      };
      ptx::st_shared_v2(first + place(row, column), number(0), number(1));
    }
  }

  // Adds up the rows of the groups, in their order, and stores them.
  __device__ __forceinline__ void store_rows(std::int64_t state) {
    constexpr int kChunks = kConfig.columns / 4;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < shared_.segment.rows * kChunks;
         i += kConfig.threads()) {
      const int row = i / kChunks;
      const int column = i % kChunks * 4;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4 own =
            ptx::ld_shared_v4(rows_address() + group * kGroupBytes + place(row, column));
        add(sum, 1.0f,
            make_float4(__uint_as_float(own.x), __uint_as_float(own.y), __uint_as_float(own.z),
                        __uint_as_float(own.w)));
      }
      if (state < 0) {
        store_result(row, column, sum);
      } else {
        const std::int64_t at = (state + row) * parameters_.columns + column;
        ptx::st_global_v4(parameters_.part_out + at, sum);
      }
    }
  }

  __device__ __forceinline__ void store_result(int row, int column, const float4& numbers) {
    const bool fp16 = kConfig.fp8 ? parameters_.problem.out.dtype == TILEWISE_FP16 : kConfig.fp16;
    if (fp16) {
      decode::store_result<true>(parameters_, shared_.segment, row, column, numbers);
    } else {
      decode::store_result<false>(parameters_, shared_.segment, row, column, numbers);
    }
  }

  __device__ __forceinline__ void store_lse() {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= shared_.segment.rows || !parameters_.problem.lse.present()) return;
    decode::store_lse(parameters_, shared_.segment, row, finalised(merged(row), sink_of(row)).lse);
  }
  __device__ __forceinline__ void store_states(std::int64_t state) {
    const int row = static_cast<int>(threadIdx.x);
    if (row < shared_.segment.rows) parameters_.part_states[state + row] = merged(row);
  }

  static constexpr std::uint32_t kGroupBytes = kConfig.rows() * kConfig.columns * 4;

  __device__ __forceinline__ std::uint32_t rows_address() const {
    return ptx::shared_address(shared_.ring);
  }
  // The byte of a number of out among the rows of a group. The pairs of a row are permuted, so that
  // four rows of a fragment lie in different banks.
  __device__ __forceinline__ static std::uint32_t place(int row, int column) {
    const int pair = column / 2 ^ row % 4 * 4;
    return static_cast<std::uint32_t>((row * kConfig.columns + pair * 2 + column % 2) * 4);
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
};

}  // namespace tilewise::cuda::decode
