// A block reads the bands that touch its tile, and those that share a box with one of them: four
// times as many rows and slices are four times as many reads, not sixteen times.
#include <gtest/gtest.h>

#include <string>

#include "cuda/emulation/band_read_count.h"
#include "registry/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

using verify::Slice;

void shuffle(std::vector<Slice>& slices) {
  Random random(5);
  for (std::size_t s = slices.size() - 1; s > 0; --s) {
    const std::int64_t other = random.between(0, static_cast<std::int64_t>(s));
    std::swap(slices[s], slices[static_cast<std::size_t>(other)]);
  }
}

// Returns how many bands the kernel reads, and expects the oracle's results.
std::int64_t count_reads(const char* kernel, const Case& c) {
  verify::Judge judge(c);
  emulation::band_reads = 0;
  const verify::Verdict verdict = judge.judge(kernel);
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << kernel << ": " << verdict.text;
  return emulation::band_reads;
}

struct Kind {
  const char* kernel;
  Operation operation;
};
constexpr Kind kKinds[] = {{"cuda_sm80", Operation::kForward},
                           {"cuda_fp32", Operation::kForward},
                           {"cuda_sm80", Operation::kBackward},
                           {"cuda_fp32", Operation::kBackward}};

Case square_case(const Kind& kind, std::int64_t rows, std::int64_t heads) {
  const bool fp32 = std::string(kind.kernel) == "cuda_fp32";
  return make_case(kind.operation, fp32 ? TILEWISE_FP32 : TILEWISE_BF16,
                   {1, rows, rows, heads, 1, 16});
}

// Few enough slices touch a tile to be kept in shared memory.
TEST(BandReads, GrowWithTheRowsIfFewSlicesTouchATile) {
  for (const Kind& kind : kKinds) {
    const auto reads = [&](std::int64_t rows) {
      Case c = square_case(kind, rows, 1);
      for (std::int64_t row = 0; row < rows; row += 8)
        c.slices.push_back({row, row + 8, row, std::min(row + 40, rows), 0, -1});
      shuffle(c.slices);
      return count_reads(kind.kernel, c);
    };
    const std::int64_t few = reads(1024);
    EXPECT_GT(few, 0) << kind.kernel;
    EXPECT_LE(reads(4096), 5 * few) << kind.kernel;
  }
}

// More slices touch a tile than a block keeps, and each lane reads those of its own rows and keys.
TEST(BandReads, GrowWithTheRowsIfManySlicesTouchATile) {
  for (const Kind& kind : kKinds) {
    const auto reads = [&](std::int64_t rows) {
      Case c = square_case(kind, rows, 2);
      c.slice_heads = true;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t head = -1; head < 2; ++head) {
          const std::int64_t key = std::max<std::int64_t>(row - 10 * (head + 1), 0);
          c.slices.push_back({row, row + 1, key, key + 1, row % 4, head});
        }
      }
      shuffle(c.slices);
      return count_reads(kind.kernel, c);
    };
    const std::int64_t few = reads(512);
    EXPECT_GT(few, 0) << kind.kernel;
    EXPECT_LE(reads(2048), 5 * few) << kind.kernel;
  }
}

}  // namespace
}  // namespace tilewise::tests
