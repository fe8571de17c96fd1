// ldmatrix: four (8, 8) matrices of 16-bit numbers from shared memory into the registers of a warp
// (PTX ISA 9.7.14.5.15). All 32 lanes execute it together: lane l gives the address of row l % 8 of
// matrix l / 8, 16 bytes each, a multiple of 16. It is ordered like an ordinary load.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// ldmatrix.x4: register i of lane l receives columns 2 (l % 4), + 1 of row l / 4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// ldmatrix.x4.trans: register i of lane l receives rows 2 (l % 4), + 1 of column l / 4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

}  // namespace tilewise::cuda::ptx
