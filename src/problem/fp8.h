// Validation of problems whose k and v are fp8 (docs/semantics.md, "fp8").
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Checks a tensor that must be fp32, bf16 or fp16 where k and v are fp8.
Status check_beside_fp8(const char* name, const tilewise_tensor& tensor);

// Refuses k of fp8 on behalf of `what`, which takes wider dtypes only.
Status refuse_fp8(const tilewise_problem& request, const char* what);

// Checks the dtypes and the device of q, k and v, where k is fp8. The three are present.
Status check_fp8(const tilewise_problem& request, Operation operation);

// Reads q_descale, k_descale and v_descale. The sizes and the views q, k and v must have been read.
Status read_descales(const tilewise_problem& request, Problem* problem);

}  // namespace tilewise::problem
