// Reports of query tiles that the fast steps could not compute, or for which they took long. A
// block has all of them in one number, so that one instruction makes a report: two bits for each
// slot of a query tile, the reasons for a careful pass, a bit for each slot whose values are large,
// and whether any tile has failed.
#pragma once

#include <cstdint>

namespace tilewise::cuda::sm90 {

inline constexpr unsigned kFailedScores = 1;  // of the tile's rows (scores_failed())
inline constexpr unsigned kNonFiniteOut = 2;  // a result is not finite
inline constexpr unsigned kOverflowed = 4;    // a lazy max was taken again: the tile has not failed
inline constexpr int kReportSlots = 8;
inline constexpr int kReasonShift = 2 * kReportSlots;
inline constexpr int kLargeShift = kReasonShift + 3;
inline constexpr unsigned kAnyFailed = 1u << 31;
static_assert(kLargeShift + kReportSlots <= 31);

// Any thread.
__device__ __forceinline__ void report_failure(unsigned& reports, std::uint32_t slot,
                                               unsigned reasons) {
  atomicOr(&reports, reasons << slot % kReportSlots * 2 | reasons << kReasonShift | kAnyFailed);
}
__device__ __forceinline__ void report_overflow(unsigned& reports) {
  atomicOr(&reports, kOverflowed << kReasonShift);
}
// A tile with large values counts as failed, whatever its steps compute.
__device__ __forceinline__ void report_large_values(unsigned& reports, std::uint32_t slot) {
  atomicOr(&reports, 1u << (kLargeShift + slot % kReportSlots));
  report_failure(reports, slot, kFailedScores);
}

// Takes the failures of a slot. One thread.
__device__ __forceinline__ unsigned take_failures(unsigned& reports, std::uint32_t slot) {
  const unsigned shift = slot % kReportSlots * 2;
  return atomicAnd(&reports, ~(3u << shift)) >> shift & 3u;
}
__device__ __forceinline__ bool take_large_values(unsigned& reports, std::uint32_t slot) {
  const unsigned bit = 1u << (kLargeShift + slot % kReportSlots);
  return (atomicAnd(&reports, ~bit) & bit) != 0;
}
// The reports as they are now.
__device__ __forceinline__ unsigned peek(const unsigned& reports) {
  return *const_cast<const volatile unsigned*>(&reports);
}
// The reasons for a careful pass among them.
__device__ __forceinline__ unsigned reasons_of(unsigned reports) {
  return reports >> kReasonShift & 7u;
}

}  // namespace tilewise::cuda::sm90
