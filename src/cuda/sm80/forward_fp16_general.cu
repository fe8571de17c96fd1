#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_fp16_general[2] = {
    table_instance<true, 11>(),
    table_instance<true, 12>(),
};

}  // namespace tilewise::cuda::sm80
