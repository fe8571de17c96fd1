// In the place of the Hopper kernels in an instrumented build, whose tests run none: they would
// take minutes to compile.
#include <array>
#include <cstddef>
#include <utility>

#include "cuda/backward/sm90/kernel.h"
#include "cuda/forward/sm90/fp8/kernel_table.h"
#include "cuda/forward/sm90/kernel_table.h"
#include "cuda/forward/sm90/parameters.h"

namespace tilewise::cuda {

template <int kRow, bool kFp16>
cudaError_t sm90::ForwardKernel<kRow, kFp16>::load() {
  return cudaErrorNotSupported;
}
template <int kRow, bool kFp16>
cudaError_t sm90::ForwardKernel<kRow, kFp16>::start(const Parameters&, int, cudaStream_t) {
  return cudaErrorNotSupported;
}
template <int kRow, bool kE5m2>
cudaError_t sm90::Fp8ForwardKernel<kRow, kE5m2>::load() {
  return cudaErrorNotSupported;
}
template <int kRow, bool kE5m2>
cudaError_t sm90::Fp8ForwardKernel<kRow, kE5m2>::start(const Parameters&, int, cudaStream_t) {
  return cudaErrorNotSupported;
}
template <int kRow, bool kFp16>
cudaError_t backward::sm90::BackwardKernel<kRow, kFp16>::load() {
  return cudaErrorNotSupported;
}
template <int kRow, bool kFp16>
cudaError_t backward::sm90::BackwardKernel<kRow, kFp16>::start(const Parameters&, std::int64_t,
                                                               cudaStream_t) {
  return cudaErrorNotSupported;
}
template <int kRow, bool kFp16>
cudaError_t backward::sm90::BackwardKernel<kRow, kFp16>::start_dq(const Parameters&, std::int64_t,
                                                                  cudaStream_t) {
  return cudaErrorNotSupported;
}

namespace {

// Names a function of each kernel, so that there is one.
template <template <int, bool> class Kernel, std::size_t... kIndex>
void use(std::index_sequence<kIndex...>, const void** first) {
  ((first[0] = reinterpret_cast<const void*>(Kernel<kIndex / 2, kIndex % 2 != 0>::load),
    first[1] = reinterpret_cast<const void*>(Kernel<kIndex / 2, kIndex % 2 != 0>::start)),
   ...);
}
template <std::size_t... kIndex>
void use_dq(std::index_sequence<kIndex...>, const void** first) {
  using backward::sm90::BackwardKernel;
  ((first[0] =
        reinterpret_cast<const void*>(BackwardKernel<kIndex / 2, kIndex % 2 != 0>::start_dq)),
   ...);
}

}  // namespace

void use_no_hopper_kernels(const void** last) {
  using backward::sm90::BackwardKernel;
  use<sm90::ForwardKernel>(std::make_index_sequence<std::size_t{2} * sm90::kKernelRows>(), last);
  use<sm90::Fp8ForwardKernel>(std::make_index_sequence<std::size_t{2} * sm90::kFp8KernelRows>(),
                              last);
  constexpr std::make_index_sequence<std::size_t{2} * backward::sm90::kKernelRows> kBackward;
  use<BackwardKernel>(kBackward, last);
  use_dq(kBackward, last);
}

}  // namespace tilewise::cuda
