// The backward pass of fp16 on AMX (see amx_fp16.h).
#include "cpu/amx/backward.h"
#include "cpu/backward/traffic.h"
#include "cpu/targets/amx_fp16.h"

namespace tilewise::cpu::TILEWISE_TARGET {

const Fp16Pass kFp16Backward = {backward_workspace<float, kPanelRegisters, AmxBackward<2>>,
                                run_backward<float, kPanelRegisters, AmxBackward<2>>,
                                backward_traffic<float, kPanelRegisters, AmxBackward<2>>};

}  // namespace tilewise::cpu::TILEWISE_TARGET
