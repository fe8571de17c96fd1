#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_64[3] = {
    table_instance<true, 0>(),
    table_instance<true, 1>(),
    table_instance<true, 2>(),
};

}  // namespace tilewise::cuda::sm80
