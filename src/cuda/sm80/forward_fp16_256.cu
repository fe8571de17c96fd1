#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_256[2] = {
    table_instance<true, 7>(),
    table_instance<true, 8>(),
};

}  // namespace tilewise::cuda::sm80
