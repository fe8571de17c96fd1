// As absent.cc, for quantisation, which chooses another instruction set. An object of its own:
// tests that emulate an instruction set replace its kernels only.
#include "cpu/quantise.h"

namespace tilewise::cpu::TILEWISE_TARGET {

extern const TargetQuantise kQuantise;
const TargetQuantise kQuantise = {};

}  // namespace tilewise::cpu::TILEWISE_TARGET
