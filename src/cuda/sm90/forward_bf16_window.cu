#include "cuda/sm90/forward.cuh"

namespace tilewise::cuda::sm90 {

extern const Instance kForward_bf16_window = window_instance<false>();

}  // namespace tilewise::cuda::sm90
