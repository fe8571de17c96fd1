// setmaxnreg (PTX ISA 9.7.19.5): registers move between the warpgroups of a block. All warps of a
// warpgroup execute it, once, at the beginning of its role; it takes effect only in kernels with a
// register limit at entry (__launch_bounds__(threads, 1)).
#pragma once

namespace tilewise::cuda::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "setmaxnreg takes a multiple of 8 from 24 to 256.");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "setmaxnreg takes a multiple of 8 from 24 to 256.");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tilewise::cuda::ptx
