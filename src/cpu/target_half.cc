// See pair_half.h; compiled as target_pairs.cc is.
#include "cpu/pair_half.h"

#include "cpu/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {

const HalfPass kHalfForward = {forward_workspace<PairBody<2>>, run_forward<PairBody<2>>,
                               forward_traffic<PairBody<2>>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
