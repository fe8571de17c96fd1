#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_64[2] = {
    table_instance<0>(),
    table_instance<1>(),
};

}  // namespace tilewise::cuda::fp32
