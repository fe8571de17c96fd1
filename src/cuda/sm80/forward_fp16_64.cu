#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_64[2] = {
    table_instance<true, 0>(),
    table_instance<true, 1>(),
};

}  // namespace tilewise::cuda::sm80
