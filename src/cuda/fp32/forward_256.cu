#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_256[1] = {
    table_instance<7>(),
};

}  // namespace tilewise::cuda::fp32
