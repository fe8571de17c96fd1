// Casts to fp8 with scales: --scales and --incoherent.
#pragma once

#include "inputs.h"

namespace tilewise::cli {

void add_quantise_flags(Flags& flags);

// Quantises those of q, k and v that --dtype and --kv-dtype cast to fp8, and adds their descale
// tensors; with --incoherent q and k are rotated. Does nothing without --scales. Throws UsageError.
void quantise_inputs(const Flags& flags, Inputs& inputs);

}  // namespace tilewise::cli
