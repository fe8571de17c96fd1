// The ladder: attention from the textbook to FlashAttention-2, and Flash-Decoding. Each rung
// computes forward and backward (Flash-Decoding: forward) on any input that the semantics allow.
// The code is written to be read, along with docs/ladder.md. three_pass in fp64 is the oracle of
// the tests.
#pragma once

#include "problem/kernel.h"

namespace tilewise::reference {

// The largest size of the modelled fast memory; workspaces are planned for it.
inline constexpr std::int64_t kMaxSramBytes = std::int64_t{1024} * 1024;

extern const problem::Kernel kThreePassForward;
extern const problem::Kernel kThreePassBackward;
extern const problem::Kernel kOnlineSoftmaxForward;
extern const problem::Kernel kOnlineSoftmaxBackward;
extern const problem::Kernel kFlash1Forward;
extern const problem::Kernel kFlash1Backward;
extern const problem::Kernel kFlash2Forward;
extern const problem::Kernel kFlash2Backward;
extern const problem::Kernel kFlashDecodingForward;
extern const problem::Kernel kFlashDecodingPpForward;

}  // namespace tilewise::reference
