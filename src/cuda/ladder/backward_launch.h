// The host code of the backward pass of cuda_flash1 and cuda_standard, for the registry.
// problem/kernel.h says what each function must do.
#pragma once

#include "problem/kernel.h"

namespace tilewise::cuda::ladder {

problem::Status supports_flash1_gradient(const problem::Problem& problem);
problem::Status prepare_flash1_gradient(const problem::Problem& problem);
std::int64_t workspace_of_flash1_gradient(const problem::Problem& problem);
double predicted_traffic_of_flash1_gradient(const problem::Problem& problem);
problem::Status run_flash1_gradient(const problem::Problem& given,
                                    const problem::RunContext& context);

problem::Status supports_standard_gradient(const problem::Problem& problem);
problem::Status prepare_standard_gradient(const problem::Problem& problem);
std::int64_t workspace_of_standard_gradient(const problem::Problem& problem);
double predicted_traffic_of_standard_gradient(const problem::Problem& problem);
problem::Status run_standard_gradient(const problem::Problem& given,
                                      const problem::RunContext& context);

}  // namespace tilewise::cuda::ladder
