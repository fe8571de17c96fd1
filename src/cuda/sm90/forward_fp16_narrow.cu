#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_narrow[] = {
    narrow_instance<true, kNarrowRows[0]>(),
    narrow_instance<true, kNarrowRows[1]>(),
    narrow_instance<true, kNarrowRows[2]>(),
};

}  // namespace tilewise::cuda::sm90
