#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_general_wide[] = {
    table_instance<true, true, 4>(),
    table_instance<true, true, 5>(),
    table_instance<true, true, 6>(),
};

}  // namespace tilewise::cuda::sm90
