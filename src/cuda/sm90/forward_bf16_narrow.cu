#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_narrow[] = {
    narrow_instance<false, kNarrowRows[0]>(),
    narrow_instance<false, kNarrowRows[1]>(),
    narrow_instance<false, kNarrowRows[2]>(),
};

}  // namespace tilewise::cuda::sm90
