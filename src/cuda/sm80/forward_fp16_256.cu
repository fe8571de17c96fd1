#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_256[2] = {
    table_instance<true, 6>(),
    table_instance<true, 7>(),
};

}  // namespace tilewise::cuda::sm80
