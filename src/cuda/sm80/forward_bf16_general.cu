#include "cuda/sm80/forward.cuh"

namespace tilewise::cuda::sm80 {

extern const Instance kForward_bf16_general[2] = {
    table_instance<false, 11>(),
    table_instance<false, 12>(),
};

}  // namespace tilewise::cuda::sm80
