#include "shim.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tilewise::torch_binding {
namespace {

#if defined(__APPLE__)
constexpr const char* kCoreLibrary = "@rpath/libtorch_cpu.dylib";
constexpr const char* kCudaLibrary = "@rpath/libtorch_cuda.dylib";
#else
constexpr const char* kCoreLibrary = "libtorch_cpu.so";
constexpr const char* kCudaLibrary = "libtorch_cuda.so";
#endif

Torch functions;

// Finds only libraries that the process has already loaded: `import torch` came first.
void* loaded_library(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }

}  // namespace

const Torch& torch() { return functions; }

const char* load() {
  void* const core = loaded_library(kCoreLibrary);
  if (core == nullptr) return "PyTorch's library libtorch_cpu is not loaded: import torch first";
#define TILEWISE_TORCH_FIND(name, result, ...)                                    \
  functions.name = reinterpret_cast<result (*)(__VA_ARGS__)>(dlsym(core, #name)); \
  if (functions.name == nullptr) {                                                \
    return "this PyTorch lacks " #name                                            \
           " of its stable C interface; 2.10 or later "                           \
           "is needed";                                                           \
  }
  TILEWISE_TORCH_FUNCTIONS(TILEWISE_TORCH_FIND)
#undef TILEWISE_TORCH_FIND
  if (void* const cuda = loaded_library(kCudaLibrary); cuda != nullptr) {
    functions.aoti_torch_get_current_cuda_stream =
        reinterpret_cast<decltype(functions.aoti_torch_get_current_cuda_stream)>(
            dlsym(cuda, "aoti_torch_get_current_cuda_stream"));
  }
  return "";
}

void raise(const char* message) { throw std::runtime_error(message); }

}  // namespace tilewise::torch_binding
