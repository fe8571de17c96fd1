// The quantisation of an instruction set that is not compiled: it chooses another one (see
// absent.cc). It is an object of its own, because tests that emulate an instruction set replace its
// kernels only.
#include "cpu/quantise.h"

namespace tilewise::cpu::TILEWISE_TARGET {

extern const TargetQuantise kQuantise;
const TargetQuantise kQuantise = {};

}  // namespace tilewise::cpu::TILEWISE_TARGET
