#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_256[2] = {
    table_instance<false, 7>(),
    table_instance<false, 8>(),
};

}  // namespace tilewise::cuda::sm80
