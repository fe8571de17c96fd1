#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_256[4] = {
    table_instance<false, 7>(),
    table_instance<false, 8>(),
    table_instance<false, 9>(),
    table_instance<false, 10>(),
};

}  // namespace tilewise::cuda::sm80
