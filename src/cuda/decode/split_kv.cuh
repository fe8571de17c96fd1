// Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023): attention of few queries to many keys, which
// takes as long as reading K and V. Blocks divide the keys (segment.h); a second kernel merges what
// they have computed of one segment (combine.cu).
#pragma once

#include "cuda/decode/fp8/queries.cuh"
#include "cuda/decode/kernel.h"
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
    if (!parameters_.uniform) ptx::wait_for_dependency();
    WorkList<kConfig.threads()> work(parameters_, shared_.search);
    const Shares shares(parameters_, work.units());
    std::int32_t unit = 0;
    std::int32_t end = 0;
    if (gang() < shares.gangs() && work.units() > 0) {
      unit = shares.begin(gang());
      if (threadIdx.x == 0) shared_.end_unit = shares.begin(gang() + 1);
      work.find(unit, member(), shared_.segment);
      end = shared_.end_unit;
    }
    ptx::wait_for_dependency();
    ptx::launch_dependents();  // after the wait: the next kernel reads the lengths without one
    bool has_q = false;
#pragma unroll 1
    while (unit < end) {
      const std::int32_t segment_end = shared_.segment.end_unit();
      const std::int32_t part_end =
          parameters_.fixed_parts ? unit + 1 : math::min(segment_end, end);
      compute(unit, part_end, has_q);
      unit = part_end;
      end = shared_.end_unit;  // read again: the loops over keys have no register for it
      has_q = unit < segment_end;
      __syncthreads();  // no thread reads the segment, its Q and its rows of out any more
      if (has_q || unit == end) continue;
      if (threadIdx.x == 0) advance(parameters_, member(), shared_.segment);
      __syncthreads();
    }
  }

 private:
  // The block's gang, and its number among the blocks of it.
  __device__ __forceinline__ std::int32_t gang() const {
    return static_cast<std::int32_t>(ptx::opaque(blockIdx.x)) / parameters_.gang;
  }
  __device__ __forceinline__ std::int32_t member() const {
    return static_cast<std::int32_t>(ptx::opaque(blockIdx.x)) % parameters_.gang;
  }

  // Computes the units [begin, end) of the segment.
  __device__ __forceinline__ void compute(std::int32_t begin, std::int32_t end, bool has_q) {
    const Segment& segment = shared_.segment;
    const std::int32_t first = segment.first_tile(parameters_.block_keys);
    const std::int32_t first_unit = begin - segment.first_unit;
    const std::int32_t end_unit = end - segment.first_unit;
    const Part part = {first + first_unit * parameters_.unit_tiles,
                       first + math::min(end_unit * parameters_.unit_tiles, segment.tiles)};
    attend_.start(part);
    if (!has_q) load_q();
    attend_.run(part);
    const bool is_whole = first_unit == 0 && end_unit == segment.units;
    __syncthreads();
    Merge<kConfig>(parameters_, shared_)
        .run(attend_,
             is_whole ? -1
                      : state_index(parameters_, part_number(parameters_, segment, begin, gang()),
                                    member(), 0));
  }

  // Describes the segment's rows and loads their Q. Rows and columns that do not exist become zero.
  __device__ __forceinline__ void load_q() {
    const Segment& segment = shared_.segment;
    const int own = static_cast<int>(threadIdx.x);
    if (own < kConfig.rows())
      shared_.rows[own] = segment_row<kConfig.at_phi>(parameters_, segment, own);
    if constexpr (kConfig.fp8) {
      load_fp8_queries(parameters_, shared_);
    } else if constexpr (kConfig.fp32) {
      load_queries<float>();
    } else {
      load_queries<std::uint16_t>();
    }
    __syncthreads();
  }

  template <class Element>
  __device__ __forceinline__ void load_queries() {
    using Layout = tile::LdmatrixTile<kConfig.columns* static_cast<int>(sizeof(Element)) / 2>;
    constexpr int kNumbers = 16 / sizeof(Element);  // of a chunk
    const Segment& segment = shared_.segment;
    const problem::View& view = parameters_.problem.q;
    const auto columns = static_cast<std::int32_t>(parameters_.problem.head_dim);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.rows() * Layout::kChunks;
         i += kConfig.threads()) {
      const int row = i / Layout::kChunks;
      const int column = i % Layout::kChunks * kNumbers;
      uint4 chunk = make_uint4(0, 0, 0, 0);
      if (row < segment.rows && column < columns) {
        const Element* const from = static_cast<const Element*>(view.data) +
                                    result_offset(parameters_, segment, view, row) + column;
        chunk = parameters_.wide_q ? *reinterpret_cast<const uint4*>(from)
                                   : load_elements(from, columns - column);
      }
      *reinterpret_cast<uint4*>(shared_.q[0] + Layout::place(row, column / kNumbers)) = chunk;
    }
  }

  // 16 bytes of the first `count` numbers from there on, and zeros.
  __device__ __forceinline__ static uint4 load_elements(const std::uint16_t* from,
                                                        std::int32_t count) {
    return sm80::load_elements(from, count);
  }
  __device__ __forceinline__ static uint4 load_elements(const float* from, std::int32_t count) {
    uint4 chunk = make_uint4(0, 0, 0, 0);
    std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(&chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) words[i] = __float_as_uint(from[i]);
    }
    return chunk;
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  Attend<kConfig> attend_;
};

// Kernel: one of kernel.h. The template parameter is not its KernelConfig: nvcc 13 gives a kernel
// whose template parameter is a value of a struct a name that does not compile.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kConfig.threads(), Kernel::kConfig.blocks)
    split_kv_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = Kernel::kConfig;
  SplitKv<kConfig>(parameters, *reinterpret_cast<Shared<kConfig>*>(dynamic_shared())).run();
}

template <class Kernel>
inline constexpr int kSharedBytes = sizeof(Shared<Kernel::kConfig>);

template <class Kernel>
cudaError_t load_split_kv() {
  static_assert(kSharedBytes<Kernel> <= Kernel::kTile.shared_bytes,
                "A row of the table fits the shared memory that it is for.");
  return cuda::load(split_kv_kernel<Kernel>, kSharedBytes<Kernel>);
}

template <class Kernel>
cudaError_t start_split_kv(const Parameters& parameters, cudaStream_t stream) {
  const Grid grid = {std::int64_t{parameters.gangs} * parameters.gang, Kernel::kConfig.threads(),
                     kSharedBytes<Kernel>};
  return parameters.early ? launch_early(split_kv_kernel<Kernel>, grid, stream, parameters)
                          : launch(split_kv_kernel<Kernel>, grid, stream, parameters);
}

template <int kRow, bool kFp16>
cudaError_t SplitKvKernel<kRow, kFp16>::load() {
  return load_split_kv<SplitKvKernel>();
}
template <int kRow, bool kFp16>
cudaError_t SplitKvKernel<kRow, kFp16>::start(const Parameters& parameters, cudaStream_t stream) {
  return start_split_kv<SplitKvKernel>(parameters, stream);
}

}  // namespace tilewise::cuda::decode
