#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_narrow[] = {
    narrow_instance<true, 0>(),
    narrow_instance<true, 1>(),
    narrow_instance<true, 2>(),
    narrow_instance<true, 3>(),
};

}  // namespace tilewise::cuda::sm90
