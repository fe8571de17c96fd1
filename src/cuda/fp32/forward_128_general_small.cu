#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_128_general_small[1] = {
    table_instance<6>(),
};

}  // namespace tilewise::cuda::fp32
