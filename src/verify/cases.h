// The case table, and random cases.
#pragma once

#include <vector>

#include "verify/case.h"
#include "verify/random.h"

namespace tilewise::verify {

// Every option, layout, storage and distribution of the semantics at least once, in each dtype,
// forward and backward: what `tilewise check` runs on every kernel in under a minute. `seed` varies
// the numbers, not the shapes.
std::vector<Case> check_cases(std::uint64_t seed);

// A valid case whose lengths lean towards the edges 0, 1, tile - 1, tile, tile + 1, 2 tile + 1, and
// whose options are any that go together. About 10^6 query-key pairs at most.
Case random_case(Operation operation, std::int32_t dtype, Random& random);

}  // namespace tilewise::verify
