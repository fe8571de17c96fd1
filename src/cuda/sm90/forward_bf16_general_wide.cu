#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_general_wide[] = {
    table_instance<false, true, 3>(),
    table_instance<false, true, 4>(),
};

}  // namespace tilewise::cuda::sm90
