#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_256[2] = {
    table_instance<7>(),
    table_instance<8>(),
};

}  // namespace tilewise::cuda::fp32
