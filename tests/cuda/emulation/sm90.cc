// The kernels of Hopper are not emulated: its launcher refuses the emulated device, and these rows
// of its table are never looked at.
#include "cuda/sm90/parameters.h"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_plain[kTileRows] = {};
extern const Instance kForward_fp16_plain[kTileRows] = {};
extern const Instance kForward_bf16_general[kWideRow] = {};
extern const Instance kForward_fp16_general[kWideRow] = {};
extern const Instance kForward_bf16_general_wide[kTileRows - kWideRow] = {};
extern const Instance kForward_fp16_general_wide[kTileRows - kWideRow] = {};

}  // namespace tilewise::cuda::sm90
