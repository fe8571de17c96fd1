#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_192[2] = {
    table_instance<true, 5>(),
    table_instance<true, 6>(),
};

}  // namespace tilewise::cuda::sm80
