// A quantisation in the one form that the code of every device reads, and its validation
// (docs/semantics.md, "Quantisation").
#pragma once

#include <tilewise/tilewise_quantise.h>

#include "math/float8.h"
#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// The part of a tensor that shares a scale.
enum class Shared { kNothing, kTensor, kHead, kBlock };  // kNothing: rows have no scales

// The scales that have a reciprocal in the normal range.
inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kLargestScale = 0x1p126f;

struct Quantisation {
  View input, output;
  View descale;          // (sequence, kv head, block of kDescaleRows rows)
  IndexView cu_seqlens;  // absent: every batch, or the packed tensor, is one sequence
  std::int64_t* saturated = nullptr;
  std::int64_t sequences = 0;  // B; 1 for a packed tensor without cu_seqlens
  std::int64_t rows = 0;       // S, or T
  std::int64_t heads = 0;      // H
  std::int64_t kv_heads = 0;   // of descale; H if it has no heads
  std::int64_t width = 0;      // D
  Shared shared = Shared::kNothing;
  bool fixed_scales = false;
  bool incoherent = false;
  std::uint64_t seed = 0;
  std::int32_t device = TILEWISE_CPU;
  std::int32_t device_index = 0;

  TILEWISE_INLINE bool computes_scales() const {
    return shared != Shared::kNothing && !fixed_scales;
  }
  TILEWISE_INLINE std::int64_t group() const { return kv_heads == 0 ? 1 : heads / kv_heads; }

  // The scale of numbers whose largest finite magnitude has the bits `largest`.
  TILEWISE_INLINE float scale_of(std::uint32_t largest) const {
    if (largest == 0) return 1;
    const float most = output.dtype == TILEWISE_E4M3
                           ? math::Float8Layout<math::Float8E4M3>::kLargestNumber
                           : math::Float8Layout<math::Float8E5M2>::kLargestNumber;
    const float scale = math::float_of(largest) / most;
    return scale > kSmallestScale ? scale : kSmallestScale;
  }
};

// The rows of a sequence, in the batch index `batch` of the views.
struct SequenceRows {
  std::int64_t batch;
  std::int64_t first;
  std::int64_t count;
};
TILEWISE_INLINE SequenceRows rows_of(const Quantisation& task, std::int64_t sequence) {
  if (!task.cu_seqlens.present()) return {sequence, 0, task.rows};
  const std::int64_t first = task.cu_seqlens.at(sequence);
  return {0, first, task.cu_seqlens.at(sequence + 1) - first};
}

// Checks a request and fills `task`. Reads the contents of cu_seqlens and of fixed scales if they
// are in memory of the CPU.
Status make_quantisation(const tilewise_quantisation& request, Quantisation* task);

}  // namespace tilewise::problem
