#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_general_wide[] = {
    table_instance<false, true, 4>(),
    table_instance<false, true, 5>(),
    table_instance<false, true, 6>(),
};

}  // namespace tilewise::cuda::sm90
