#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_128[2] = {
    table_instance<3>(),
    table_instance<4>(),
};

}  // namespace tilewise::cuda::fp32
