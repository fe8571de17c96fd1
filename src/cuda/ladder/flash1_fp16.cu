#include "cuda/ladder/flash1.cuh"

namespace tilewise::cuda::ladder {

extern const Flash1Instance kFlash1_fp16[2] = {
    Flash1Launch<true, 0>::instance(),
    Flash1Launch<true, 1>::instance(),
};

}  // namespace tilewise::cuda::ladder
