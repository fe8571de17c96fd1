#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_128[2] = {
    table_instance<true, 3>(),
    table_instance<true, 4>(),
};

}  // namespace tilewise::cuda::sm80
