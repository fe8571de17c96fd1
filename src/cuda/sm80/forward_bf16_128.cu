#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_128[2] = {
    table_instance<false, 3>(),
    table_instance<false, 4>(),
};

}  // namespace tilewise::cuda::sm80
