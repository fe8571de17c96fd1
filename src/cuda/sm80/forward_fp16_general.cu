#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_general[2] = {
    table_instance<true, 8>(),
    table_instance<true, 9>(),
};

}  // namespace tilewise::cuda::sm80
