// The mask that flags of explain describe: --slices, or --causal, --window and --cu-seqlens-q.
#pragma once

#include "distributed/magi/mask.h"
#include "random_inputs.h"

namespace tilewise::cli {

void add_mask_flags(Flags& flags);

// Returns the mask over the token axes of all sequences together; without --slices and
// --cu-seqlens-q, the B sequences of the shape follow each other. Throws UsageError or
// io::FileError.
distributed::magi::Mask read_mask(const Flags& flags, const Shape& shape);

// Returns the least lengths and number of heads that the slices of --slices lie within.
Shape shape_of_slices(const Flags& flags);

}  // namespace tilewise::cli
