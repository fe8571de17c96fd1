#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_128_general[1] = {
    table_instance<5>(),
};

}  // namespace tilewise::cuda::fp32
