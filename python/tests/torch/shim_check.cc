// This file is compiled, not run: it checks that the types in python/torch/shim.h are those of
// PyTorch's own headers.
#include "../../torch/shim.h"
//
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <type_traits>

#define TILEWISE_SAME(name, result, ...)                                    \
  static_assert(std::is_same_v<decltype(&::name), result (*)(__VA_ARGS__)>, \
                #name " has another type in these headers than in shim.h");

namespace tilewise::torch_binding {
TILEWISE_TORCH_FUNCTIONS(TILEWISE_SAME)
static_assert(std::is_same_v<Value, ::StableIValue>, "an operator's stack holds other values");
}  // namespace tilewise::torch_binding
