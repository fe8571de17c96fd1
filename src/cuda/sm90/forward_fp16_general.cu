#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_general[] = {
    table_instance<true, true, 0>(),
    table_instance<true, true, 1>(),
    table_instance<true, true, 2>(),
    table_instance<true, true, 3>(),
};

}  // namespace tilewise::cuda::sm90
