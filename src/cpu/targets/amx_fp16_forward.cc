// The forward pass of fp16 on AMX (see amx_fp16.h).
#include "cpu/targets/amx_fp16.h"

#include "cpu/amx/forward.h"
#include "cpu/forward/traffic.h"

namespace tilewise::cpu::TILEWISE_TARGET {

const Fp16Pass kFp16Forward = {forward_workspace<AmxForward<2>>, run_forward<AmxForward<2>>,
                               forward_traffic<AmxForward<2>>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
