// The score function of cases: it depends on the score, the relative position and the head.
#pragma once

#include <tilewise/tilewise.h>

namespace tilewise::verify {

// f(s) = s + a * s / (1 + |s|) + t, where a depends on the head, and t on the distance i + d - j.
// An infinite score stays infinite.
tilewise_score_function sample_score_function();

}  // namespace tilewise::verify
