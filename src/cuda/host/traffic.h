// Traffic between global memory and the tiles of the forward kernels, in bytes. count_*() add up
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

}  // namespace tilewise::cuda
