#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_plain[] = {
    table_instance<false, false, 0>(),
    table_instance<false, false, 1>(),
    table_instance<false, false, 2>(),
};

}  // namespace tilewise::cuda::sm90
