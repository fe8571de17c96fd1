// Traffic between global memory and the tiles of the kernels, in bytes. count_*() add up
// what a launch moves, tile by tile, in the order in which the device computes them; predicted_*()
// are the closed forms. Loads that hit L2 count, too. Row statistics do not, as in the papers.
#pragma once

#include "cuda/tile/scheduler.h"
#include "problem/kernel.h"

namespace tilewise::cuda {

struct TileSizes {
  int q_rows;
  int k_rows;
};

// Adds the traffic of a FlashAttention-2 launch whose blocks compute the tiles of `schedule`. Adds
// nothing if `traffic` is nullptr, or if there is no closed form: the contents of tensors decide,
// which the host cannot read, or bias and mask add to it.
void count_traffic(const problem::Problem& problem, const tile::Schedule& schedule, TileSizes tiles,
                   problem::Traffic* traffic);

// The closed form for FlashAttention-2: for one head with D = Dv, without a mask,
// 2 Sq D + 2 ceil(Sq / Br) Sk D elements. NaN if there is none.
double predicted_traffic(const problem::Problem& problem, TileSizes tiles);

// The traffic of FlashAttention-1 (ladder/flash1.cuh): 2 Sk D + Tc Sq D elements of the inputs'
// type, Sq D elements of out, and 2 (Tc - 1) Sq D elements of fp32.
void count_flash1_traffic(const problem::Problem& problem, TileSizes tiles,
                          problem::Traffic* traffic);
double predicted_flash1_traffic(const problem::Problem& problem, TileSizes tiles);

// The fp32 elements of a row of out between two tiles of keys, in FlashAttention-1.
std::int64_t value_stride(const problem::Problem& problem);

// The traffic of standard attention (ladder/standard.cuh, ladder/softmax.cu): 2 Sq D + 2 Tr Sk D
// elements, and 16 bytes for each of Sq Sk scores: S is written once and read twice, P is written
// and read. Masks change nothing.
void count_standard_traffic(const problem::Problem& problem, TileSizes tiles,
                            problem::Traffic* traffic);
double predicted_standard_traffic(const problem::Problem& problem, TileSizes tiles);

// A backward kernel whose blocks compute a tile of keys, or one after the other, and add to sums of
// dQ in fp32.
struct GradientTiles {
  TileSizes sizes;
  int columns;      // of a row of the sums
  bool loads_sums;  // FlashAttention-1 loads the sums that it adds to; atomic additions do not
};

// The traffic of FlashAttention-1 and -2, backward: for one head, 4 Sk D (K, V, dK, dV), 2 Tc Sq D
// (Q and dO), 2 Sq D (O and dO, for delta) and Sq D (dQ) elements, and Tc + 2 times Sq columns of
// fp32 (sums of dQ); FlashAttention-1 2 Tc + 2 times.
void count_gradient_traffic(const problem::Problem& problem, GradientTiles tiles,
                            problem::Traffic* traffic);
double predicted_gradient_traffic(const problem::Problem& problem, GradientTiles tiles);

// The traffic of standard attention, backward (ladder/standard_backward.cuh), with all gradients:
// 2 Sq D + 2 Tr Sk D (for S and dP), 2 Sq D (for delta), 2 Tc Sq D + Tr Sk D (for dV, dK and dQ)
// and Sq D + 2 Sk D (stored) elements, and 26 bytes for each of Sq Sk scores: S and dP are written
// and read in fp32, P and dS written in 16 bits, P read once and dS twice. A softcap adds 8 bytes,
// since Q K^T is written and read.
void count_standard_gradient_traffic(const problem::Problem& problem, TileSizes tiles,
                                     problem::Traffic* traffic);
double predicted_standard_gradient_traffic(const problem::Problem& problem, TileSizes tiles);

}  // namespace tilewise::cuda
