// setmaxnreg (PTX ISA 9.7.19.5): moves registers between the warpgroups of a block. All warps of a
// warpgroup execute it once, at the beginning of the warpgroup's role. It takes effect only in
// kernels with a register limit at entry (__launch_bounds__(threads, 1)).
#pragma once

namespace tilewise::cuda::ptx {

// setmaxnreg.dec: releases registers until kRegisters per thread are left. Their values are lost.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "setmaxnreg takes a multiple of 8 from 24 to 256.");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// setmaxnreg.inc: waits until the block has released enough registers for kRegisters per thread.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "setmaxnreg takes a multiple of 8 from 24 to 256.");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tilewise::cuda::ptx
