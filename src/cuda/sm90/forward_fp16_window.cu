#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_fp16_window = window_instance<true>();

}  // namespace tilewise::cuda::sm90
