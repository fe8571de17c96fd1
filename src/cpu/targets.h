// The instruction sets that src/cpu is compiled for, and what this machine can run.
#pragma once

namespace tilewise::cpu {

struct Target {
  const char* name;
  const char* base;   // what it includes: kernels of that one serve where it has none; or nullptr
  const char* needs;  // for messages
  bool (*available)();
};

// Best first, ended by a name of nullptr.
extern const Target kTargets[];

// Whether a product of bf16 pairs (AVX512-BF16) takes no longer than a multiply-add of floats.
bool bf16_dot_is_fast();

const Target* find_target(const char* name);  // nullptr if there is none of that name

}  // namespace tilewise::cpu
