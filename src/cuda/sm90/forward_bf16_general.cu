#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_general[3] = {
    table_instance<false, 64, false, true>(),
    table_instance<false, 128, false, true>(),
    table_instance<false, 128, true, true>(),
};

}  // namespace tilewise::cuda::sm90
