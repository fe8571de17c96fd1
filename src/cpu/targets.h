// The instruction sets that src/cpu is compiled for, and whether this machine has them.
#pragma once

namespace tilewise::cpu {

struct Target {
  const char* name;
  const char* base;   // the instruction set whose kernels serve where this one has none, or nullptr
  const char* needs;  // for messages
  bool (*available)();
};

// The best one comes first; an entry with the name nullptr ends the list.
extern const Target kTargets[];

// Whether vdpbf16ps (AVX512-BF16, two multiply-adds of bf16) takes no longer than a multiply-add of
// floats.
bool bf16_dot_is_fast();

// Whether this build has the kernels of an instruction set, which then need only the machine.
bool is_compiled(const char* name);

const Target* find_target(const char* name);  // nullptr if there is no such name

}  // namespace tilewise::cpu
