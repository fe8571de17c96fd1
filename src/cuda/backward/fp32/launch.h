// cuda_fp32, backward: host code.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cuda::backward::fp32 {

problem::Status supports(const problem::Problem& problem);
problem::Status prepare(const problem::Problem& problem);
std::int64_t workspace_bytes(const problem::Problem& problem);
double predicted_traffic(const problem::Problem& problem);
problem::Status run(const problem::Problem& problem, const problem::RunContext& context);

}  // namespace tilewise::cuda::backward::fp32
