#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_256_short[2] = {
    table_instance<true, 9>(),
    table_instance<true, 10>(),
};

}  // namespace tilewise::cuda::sm80
