#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_long[] = {
    table_instance<false, false, kFoldingRow>(),
    folding_instance<false>(),
};

}  // namespace tilewise::cuda::sm90
