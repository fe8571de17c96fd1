#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_256_short[2] = {
    table_instance<false, 9>(),
    table_instance<false, 10>(),
};

}  // namespace tilewise::cuda::sm80
