#include "calibrate/gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "cuda/host/runtime.h"
#include "math/number.h"
#include "verify/device_copy.h"
#include "verify/random.h"

namespace tilewise::calibrate {
namespace {

// The few declarations of cublas_api.h that are needed, because the library is loaded at run time.
using Handle = void*;
constexpr int kNoTranspose = 0;        // CUBLAS_OP_N
constexpr int kTranspose = 1;          // CUBLAS_OP_T
constexpr int kBf16 = 14;              // CUDA_R_16BF
constexpr int kComputeFp32 = 68;       // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;  // CUBLAS_GEMM_DEFAULT
using Create = int (*)(Handle*);
using Destroy = int (*)(Handle);
using GemmEx = int (*)(Handle, int, int, int, int, int, const void*, const void*, int, int,
                       const void*, int, int, const void*, void*, int, int, int, int);

struct Library {
  void* file = nullptr;
  Create create = nullptr;
  Destroy destroy = nullptr;
  GemmEx gemm = nullptr;

  Library() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (file == nullptr) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (file == nullptr) return;
    create = reinterpret_cast<Create>(dlsym(file, "cublasCreate_v2"));
    destroy = reinterpret_cast<Destroy>(dlsym(file, "cublasDestroy_v2"));
    gemm = reinterpret_cast<GemmEx>(dlsym(file, "cublasGemmEx"));
  }
  bool complete() const { return create != nullptr && destroy != nullptr && gemm != nullptr; }
};

constexpr int kSize = 8192;

// Fills both operands with the same random numbers; zeros would draw less power and run faster.
void fill_random(std::int32_t device, std::byte* memory) {
  verify::Random random(1);
  std::vector<math::BFloat16> numbers(std::size_t{kSize} * kSize);
  for (math::BFloat16& x : numbers) x = math::to_bfloat16(static_cast<float>(random.uniform()));
  cuda::copy(device, memory, numbers.data(), std::int64_t{2} * kSize * kSize, nullptr);
}

}  // namespace

double measure_gemm(std::int32_t device) {
  constexpr int kRuns = 10;
  const Library library;
  Handle handle = nullptr;
  if (!library.complete() || library.create(&handle) != 0) return 0;
  const std::int64_t bytes = std::int64_t{2} * kSize * kSize;
  const verify::DeviceMemory a(device, bytes);
  const verify::DeviceMemory b(device, bytes);
  const verify::DeviceMemory c(device, bytes);
  fill_random(device, a.data());
  cuda::copy(device, b.data(), a.data(), bytes, nullptr);
  const float one = 1;
  const float zero = 0;
  std::vector<double> times;
  cuda::Stopwatch stopwatch(device, nullptr);
  for (int run = 0; run < kRuns + 3; ++run) {
    stopwatch.start();
    const int failed = library.gemm(handle, kTranspose, kNoTranspose, kSize, kSize, kSize, &one,
                                    a.data(), kBf16, kSize, b.data(), kBf16, kSize, &zero, c.data(),
                                    kBf16, kSize, kComputeFp32, kDefaultAlgorithm);
    const double seconds = stopwatch.stop();
    if (failed != 0) break;
    if (run >= 3) times.push_back(seconds);  // the first three warm up
  }
  library.destroy(handle);
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return 2.0 * kSize * kSize * kSize / times[times.size() / 2];
}

}  // namespace tilewise::calibrate
