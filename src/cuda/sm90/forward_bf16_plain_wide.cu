#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_plain_wide[] = {
    table_instance<false, false, 4>(),
    table_instance<false, false, 5>(),
    table_instance<false, false, 6>(),
};

}  // namespace tilewise::cuda::sm90
