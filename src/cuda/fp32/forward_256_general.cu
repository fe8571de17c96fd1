#include "cuda/fp32/forward.cuh"

namespace tilewise::cuda::fp32 {

extern const Instance kForward_256_general[2] = {
    table_instance<10>(),
    table_instance<11>(),
};

}  // namespace tilewise::cuda::fp32
