#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_narrow[] = {
    narrow_instance<false, 0>(),
    narrow_instance<false, 1>(),
    narrow_instance<false, 2>(),
    narrow_instance<false, 3>(),
};

}  // namespace tilewise::cuda::sm90
