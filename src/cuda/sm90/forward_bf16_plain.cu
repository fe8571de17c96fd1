#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_plain[3] = {
    table_instance<false, 64, false, false>(),
    table_instance<false, 128, false, false>(),
    table_instance<false, 128, true, false>(),
};

}  // namespace tilewise::cuda::sm90
