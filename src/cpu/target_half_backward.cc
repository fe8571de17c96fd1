// See pair_half.h; compiled as target_pairs.cc is.
#include "cpu/pair_backward.h"
#include "cpu/pair_half.h"
#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {

const HalfPass kHalfBackward = {backward_workspace<float, kPanelRegisters, PairKeys<2>>,
                                run_backward<float, kPanelRegisters, PairKeys<2>>,
                                backward_traffic<float, kPanelRegisters, PairKeys<2>>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
