// The case table, and random cases.
#pragma once

#include <vector>

#include "verify/case.h"
#include "verify/random.h"

namespace tilewise::verify {

// Returns cases that cover every option, layout, storage and distribution of the semantics at least
// once, in each dtype, forward and backward. `tilewise check` runs them on every kernel in under a
// minute. `seed` varies the numbers, not the shapes.
std::vector<Case> check_cases(std::uint64_t seed);

// Returns a case of these sizes, with Dv = D.
Case sized(std::int64_t batch, std::int64_t q_len, std::int64_t k_len, std::int64_t heads,
           std::int64_t kv_heads, std::int64_t head_dim);

// Adds the table's cases of fp8, for the forward pass: each form of q, of the scales and of k and
// v, in the main loop and in decoding.
void add_fp8(std::vector<Case>& cases);

// Makes the outputs of a case wide enough for its calls to accumulate (q_cuts, k_cuts).
void widen_outputs(Case& c);

// Returns a valid random case. Its lengths prefer the edges 0, 1, tile - 1, tile, tile + 1 and 2
// tile + 1; its options are any that are allowed together. It has about 10^6 query-key pairs at
// most.
Case random_case(Operation operation, std::int32_t dtype, Random& random);

}  // namespace tilewise::verify
