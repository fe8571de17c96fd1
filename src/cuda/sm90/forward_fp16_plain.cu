#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_plain[3] = {
    table_instance<true, 64, false, false>(),
    table_instance<true, 128, false, false>(),
    table_instance<true, 128, true, false>(),
};

}  // namespace tilewise::cuda::sm90
