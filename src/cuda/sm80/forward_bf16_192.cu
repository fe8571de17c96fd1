#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_192[2] = {
    table_instance<false, 5>(),
    table_instance<false, 6>(),
};

}  // namespace tilewise::cuda::sm80
