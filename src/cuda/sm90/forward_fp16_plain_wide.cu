#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_plain_wide[] = {
    table_instance<true, false, 4>(),
    table_instance<true, false, 5>(),
    table_instance<true, false, 6>(),
};

}  // namespace tilewise::cuda::sm90
