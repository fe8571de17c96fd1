#include "cuda/ladder/standard.cuh"

namespace tilewise::cuda::ladder {

extern const StandardInstance kStandard_fp16[2] = {
    StandardLaunch<true, 0>::instance(),
    StandardLaunch<true, 1>::instance(),
};

}  // namespace tilewise::cuda::ladder
