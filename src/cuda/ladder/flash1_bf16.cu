#include "cuda/ladder/flash1.cuh"

namespace tilewise::cuda::ladder {

extern const Flash1Instance kFlash1_bf16[2] = {
    Flash1Launch<false, 0>::instance(),
    Flash1Launch<false, 1>::instance(),
};

}  // namespace tilewise::cuda::ladder
