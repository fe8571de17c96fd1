// Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023): attention of few queries to many keys, which
// takes as long as reading K and V. Blocks divide the keys (work.cuh); a second kernel merges what
// they have computed of one segment (combine.cu).
#pragma once

#include "cuda/decode/kernel_table.h"
#include "cuda/decode/merge.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/pdl.cuh"
#include "cuda/sm80/cp_async_tile.cuh"

namespace tilewise::cuda::decode {

template <KernelConfig kConfig>
class SplitKv {
 public:
  __device__ SplitKv(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared), attend_(parameters, shared) {}

  // Computes the share of a block.
  __device__ __forceinline__ void run() {
    WorkList<kConfig.threads()> work(parameters_, shared_.search);
    if (work.units() == 0) return;
    const Shares shares(parameters_, work.units());
    const std::int64_t block = blockIdx.x;
    if (block >= shares.blocks) return;
    std::int64_t unit = shares.begin(block);
    const std::int64_t end = shares.begin(block + 1);
    work.find(unit, shared_.segment);
    load_q();
#pragma unroll 1
    while (unit < end) {
      const std::int64_t segment_end = shared_.segment.end_unit();
      const std::int64_t part_end =
          parameters_.fixed_parts ? unit + 1 : math::min(segment_end, end);
      compute(unit, part_end, block);
      unit = part_end;
      if (unit == segment_end && unit < end) {
        __syncthreads();  // no thread reads the segment and its Q any more
        if (threadIdx.x == 0) advance(parameters_, shared_.segment);
        __syncthreads();
        load_q();
      } else {
        __syncthreads();  // no thread reads the merged rows any more
      }
    }
  }

 private:
  // Computes the units [begin, end) of the segment.
  __device__ __forceinline__ void compute(std::int64_t begin, std::int64_t end,
                                          std::int64_t block) {
    const Segment& segment = shared_.segment;
    const std::int32_t first = segment.first_tile(parameters_.block_keys);
    const auto first_unit = static_cast<std::int32_t>(begin - segment.first_unit);
    const auto end_unit = static_cast<std::int32_t>(end - segment.first_unit);
    attend_.run({first + first_unit * parameters_.unit_tiles,
                 first + math::min(end_unit * parameters_.unit_tiles, segment.tiles)});
    const bool is_whole = first_unit == 0 && end_unit == segment.units;
    __syncthreads();
    Merge<kConfig>(parameters_, shared_)
        .run(attend_, is_whole ? -1 : part_slot(parameters_, segment, begin, block));
  }

  // Loads the segment's rows of Q. Rows and columns that do not exist become zero.
  __device__ __forceinline__ void load_q() {
    constexpr int kChunks = kConfig.columns / 8;
    const Segment& segment = shared_.segment;
    const problem::View& view = parameters_.problem.q;
    const auto columns = static_cast<std::int32_t>(parameters_.problem.head_dim);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.rows() * kChunks;
         i += kConfig.threads()) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      uint4 chunk = make_uint4(0, 0, 0, 0);
      if (row < segment.rows && column < columns) {
        const std::uint16_t* const from = static_cast<const std::uint16_t*>(view.data) +
                                          result_offset(parameters_, segment, view, row) + column;
        chunk = parameters_.wide_q ? *reinterpret_cast<const uint4*>(from)
                                   : sm80::load_elements(from, columns - column);
      }
      using Layout = tile::LdmatrixTile<kConfig.columns>;
      *reinterpret_cast<uint4*>(shared_.q + Layout::place(row, column / 8)) = chunk;
    }
    __syncthreads();
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Attend<kConfig> attend_;
};

// The template parameter is the row of the table, not the KernelConfig: nvcc 13 gives a kernel
// whose template parameter is a struct a name that does not compile.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    split_kv_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  ptx::wait_for_dependency();
  ptx::launch_dependents();
  SplitKv<kConfig>(parameters, *reinterpret_cast<Shared<kConfig>*>(dynamic_shared())).run();
}

template <int kRow, bool kFp16>
inline constexpr int kSharedBytes = sizeof(Shared<kKernels[kRow].config(kFp16)>);

template <int kRow, bool kFp16>
cudaError_t SplitKvKernel<kRow, kFp16>::load() {
  static_assert(kSharedBytes<kRow, kFp16> <= kKernels[kRow].shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(split_kv_kernel<kRow, kFp16>, kSharedBytes<kRow, kFp16>);
}

template <int kRow, bool kFp16>
cudaError_t SplitKvKernel<kRow, kFp16>::start(const Parameters& parameters, cudaStream_t stream) {
  constexpr int kThreads = kKernels[kRow].config(kFp16).threads();
  const Grid grid = {parameters.blocks, kThreads, kSharedBytes<kRow, kFp16>};
  return parameters.early ? launch_early(split_kv_kernel<kRow, kFp16>, grid, stream, parameters)
                          : launch(split_kv_kernel<kRow, kFp16>, grid, stream, parameters);
}

}  // namespace tilewise::cuda::decode
