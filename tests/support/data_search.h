// Random data for the search for inputs that slow a kernel down: scales, trends, outliers, signs,
// magnitudes of V, NaN and infinity anywhere, and masks, alone and composed. Everything follows
// from the seed. describe() (verify/case.h) prints the case, and its inputs are a name that
// `tilewise bench --data` takes.
#pragma once

#include "verify/case.h"

namespace tilewise::tests {

// The shape that the data is tried on. Lengths of several tiles leave room for tiles that an edge
// cuts and tiles that none does.
struct SearchShape {
  std::int64_t batch = 1;
  std::int64_t q_len = 200;
  std::int64_t k_len = 520;
  std::int64_t heads = 2;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
};

// Returns the case of a seed. verify::Instance makes its tensors.
verify::Case searched_case(std::uint64_t seed, verify::Operation operation, std::int32_t dtype,
                           const SearchShape& shape = {});

// Returns the same problem on random normal data, with which the counts of a case are compared.
verify::Case with_normal_data(const verify::Case& searched);

}  // namespace tilewise::tests
