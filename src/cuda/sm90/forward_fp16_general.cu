#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_general[3] = {
    table_instance<true, 64, false, true>(),
    table_instance<true, 128, false, true>(),
    table_instance<true, 128, true, true>(),
};

}  // namespace tilewise::cuda::sm90
