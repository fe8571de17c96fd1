#include "cuda/ladder/standard.cuh"

namespace tilewise::cuda::ladder {

extern const StandardInstance kStandard_bf16[2] = {
    StandardLaunch<false, 0>::instance(),
    StandardLaunch<false, 1>::instance(),
};

}  // namespace tilewise::cuda::ladder
