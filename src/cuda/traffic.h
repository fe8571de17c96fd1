// Bytes between the device's memory and the tiles of the forward kernels: what a launch moves,
// added up over its work on the host, tile by tile as the device walks, and the closed form. What
// L2 answers counts too; row statistics do not, as in the papers.
#pragma once

#include "cuda/tile/schedule.h"
#include "problem/kernel.h"

namespace tilewise::cuda {

struct TileSizes {
  int q_rows;
  int k_rows;
};

// Adds what a launch moves whose blocks take tiles of queries as `schedule` deals them out; nothing
// if `traffic` is nullptr, or where there is no closed form: contents decide, which the host cannot
// read, or bias and mask add to it.
void count_traffic(const problem::Problem& problem, const tile::Schedule& schedule, TileSizes tiles,
                   problem::Traffic* traffic);

// The closed form, FlashAttention-2's: for one head with D = Dv, without a mask, 2 Sq D + 2 ceil(Sq
// / Br) Sk D elements. NaN where there is none.
double predicted_traffic(const problem::Problem& problem, TileSizes tiles);

}  // namespace tilewise::cuda
