// The functions that load and start the decode kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/decode/kernel_table.h"
#include "cuda/decode/parameters.h"

namespace tilewise::cuda::decode {

// A compiled kernel, given by a row of the table and a type. CMakeLists.txt generates the source
// files that instantiate them.
template <int kRow, bool kFp16>
struct SplitKvKernel {
  static constexpr TileRow kTile = kKernels[kRow];
  static constexpr KernelConfig kConfig = kTile.config(kFp16);
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, cudaStream_t stream);
};

// A compiled kernel for K and V of e4m3 or e5m2, given by a row of kFp8Kernels.
template <int kRow, bool kE5M2>
struct Fp8SplitKvKernel {
  static constexpr TileRow kTile = kFp8Kernels[kRow];
  static constexpr KernelConfig kConfig = kTile.fp8_config(kE5M2);
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, cudaStream_t stream);
};

// A compiled kernel for fp32, given by a row of kFp32Kernels.
template <int kRow>
struct Fp32SplitKvKernel {
  static constexpr TileRow kTile = kFp32Kernels[kRow];
  static constexpr KernelConfig kConfig = kTile.fp32_config();
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, cudaStream_t stream);
};

// Merges the parts of the segments that several gangs have computed.
cudaError_t load_combine();
struct CombineGrid {
  std::int64_t candidates;  // the most parts that may begin such a segment
  std::int32_t rows;        // the most rows of a segment
  std::int64_t parts;       // of a segment, about
};
cudaError_t start_combine(const Parameters& parameters, const CombineGrid& grid,
                          cudaStream_t stream);

}  // namespace tilewise::cuda::decode
