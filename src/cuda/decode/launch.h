// The host code of the decode kernels (cuda_decode), for the registry.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cuda::decode {

problem::Status supports(const problem::Problem& problem);
const char* slower(const problem::Problem& problem, const problem::Machine& machine);
problem::Status prepare(const problem::Problem& problem);
std::int64_t workspace_bytes(const problem::Problem& problem);
problem::Status run(const problem::Problem& problem, const problem::RunContext& context);

}  // namespace tilewise::cuda::decode
