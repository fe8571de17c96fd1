#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_long[] = {
    table_instance<true, false, kFoldingRow>(),
    folding_instance<true>(),
};

}  // namespace tilewise::cuda::sm90
