// stmatrix: four (8, 8) matrices of 16-bit numbers from the registers of a warp to shared memory
// (PTX ISA 9.7.14.5.16).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// stmatrix.x4. All 32 lanes together: lane l gives the address of row l % 8 of matrix l / 8, 16
// bytes each, a multiple of 16, and of every matrix i the pair `pairs[i]` at row l / 4 and columns
// 2 (l % 4), + 1. Ordered like an ordinary store: other lanes read the matrices after __syncwarp().
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address,
                                            const std::uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

}  // namespace tilewise::cuda::ptx
