// Bytes between the device's memory and the tiles of the forward kernels: what a launch moves,
// added up over its work on the host, tile by tile as the device walks, and the closed form. What
// L2 answers counts too; row statistics do not, as in the papers.
#pragma once

#include "cuda/tile/scheduler.h"
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

// The same of FlashAttention-1 as ladder/flash1.cuh has it: 2 Sk D + Tc Sq D elements of the
// inputs' type, Sq D of out, and 2 (Tc - 1) Sq D of fp32.
void count_flash1_traffic(const problem::Problem& problem, TileSizes tiles,
                          problem::Traffic* traffic);
double predicted_flash1_traffic(const problem::Problem& problem, TileSizes tiles);

// fp32 elements of a row of out between two tiles of keys.
std::int64_t value_stride(const problem::Problem& problem);

// The same of attention by matrices in memory (ladder/standard.cuh, ladder/softmax.cu): 2 Sq D + 2
// Tr Sk D elements, and 16 bytes for each of Sq Sk: S is written once and read twice, P written and
// read. Masks change nothing.
void count_standard_traffic(const problem::Problem& problem, TileSizes tiles,
                            problem::Traffic* traffic);
double predicted_standard_traffic(const problem::Problem& problem, TileSizes tiles);

}  // namespace tilewise::cuda
