// The host code of the decode kernels (cuda_decode), for the registry.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cuda::decode {

problem::Status supports(const problem::Problem& problem);
// Why the kernel after it is preferred, or nullptr. beside_sm90: cuda_sm90 supports the problem.
const char* slower(const problem::Problem& problem, bool beside_sm90);
problem::Status prepare(const problem::Problem& problem);
std::int64_t workspace_bytes(const problem::Problem& problem);
problem::Status run(const problem::Problem& problem, const problem::RunContext& context);

}  // namespace tilewise::cuda::decode
