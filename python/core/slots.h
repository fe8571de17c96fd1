// The tensor arguments of an operation, in the order in which Python passes them.
#pragma once

#include <nanobind/nanobind.h>

#include "call.h"

namespace tilewise::python {

// Sets the tensors of a call. `values` are, forward: q, k, v, out, lse; backward: dout, q, k, v,
// out, lse, dlse, dq, dk, dv, dbias, dsink, dalibi_slopes. None stands for an absent one.
void set_slots(std::int32_t operation, const nanobind::tuple& values, Call* call);

}  // namespace tilewise::python
