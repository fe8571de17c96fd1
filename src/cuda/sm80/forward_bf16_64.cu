#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_64[3] = {
    table_instance<false, 0>(),
    table_instance<false, 1>(),
    table_instance<false, 2>(),
};

}  // namespace tilewise::cuda::sm80
