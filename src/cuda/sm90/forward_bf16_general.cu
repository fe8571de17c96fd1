#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_general[] = {
    table_instance<false, true, 0>(),
    table_instance<false, true, 1>(),
    table_instance<false, true, 2>(),
    table_instance<false, true, 3>(),
};

}  // namespace tilewise::cuda::sm90
