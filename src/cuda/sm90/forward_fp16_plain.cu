#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_plain[] = {
    table_instance<true, false, 0>(),
    table_instance<true, false, 1>(),
    table_instance<true, false, 2>(),
};

}  // namespace tilewise::cuda::sm90
