#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_256_small[1] = {
    table_instance<9>(),
};

}  // namespace tilewise::cuda::fp32
