// The mask that a problem describes.
#pragma once

#include "distributed/magi/mask.h"
#include "distributed/whole.h"

namespace tilewise::distributed::magi {

// Makes the mask of the slices of a problem, or without slices of its causal, window and alignment,
// for each document of cu_seqlens_q and cu_seqlens_k, or for one sequence. The lengths are those of
// the whole; of q only the number of heads is read. Refuses seqused, a boolean mask, and tokens
// that belong to no document. The lists are in CPU memory.
Status mask_of_problem(const tilewise_problem& request, Lengths lengths, Mask* mask);

}  // namespace tilewise::distributed::magi
