#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_64_general[1] = {
    table_instance<2>(),
};

}  // namespace tilewise::cuda::fp32
