// The mask that explain --ranks divides.
#pragma once

#include "distributed/magi/mask.h"
#include "random_inputs.h"

namespace tilewise::cli {

// Returns the mask over the token axes of all sequences together, from --slices, or from --causal,
// --window and --cu-seqlens-q; without the latter, the B sequences of --shape follow each other.
// Throws UsageError or io::FileError.
distributed::magi::Mask read_mask(const Flags& flags, const Shape& shape);

}  // namespace tilewise::cli
