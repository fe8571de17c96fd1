#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_256_large[1] = {
    table_instance<8>(),
};

}  // namespace tilewise::cuda::fp32
