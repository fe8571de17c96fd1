// The shares of the gangs and the parts of the segments, without a GPU.
#include "cuda/decode/segment.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tilewise::cuda::decode {
namespace {

Parameters parameters_for(std::int32_t gangs, std::int32_t least_units) {
  Parameters parameters = {};
  parameters.gangs = gangs;
  parameters.least_units = least_units;
  return parameters;
}

TEST(Shares, CoverEveryUnitOnceAndDifferByOneUnit) {
  for (const std::int32_t gangs : {1, 2, 7, 33}) {
    for (const std::int32_t units : {0, 1, 2, 6, 7, 8, 32, 33, 34, 65, 66, 1000}) {
      for (const std::int32_t least : {1, 4}) {
        const Shares shares(parameters_for(gangs, least), units);
        ASSERT_GE(shares.gangs(), 1);
        ASSERT_LE(shares.gangs(), gangs);
        EXPECT_EQ(shares.begin(0), 0);
        EXPECT_EQ(shares.begin(shares.gangs()), units);
        for (std::int32_t gang = 0; gang < shares.gangs(); ++gang) {
          const std::int32_t size = shares.begin(gang + 1) - shares.begin(gang);
          EXPECT_GE(size, std::min(least, units)) << gangs << " gangs, " << units << " units";
          EXPECT_LE(size, units / shares.gangs() + 1);
          for (std::int32_t unit = shares.begin(gang); unit < shares.begin(gang + 1); ++unit)
            EXPECT_EQ(shares.gang_of(unit), gang);
        }
      }
    }
  }
}

TEST(Shares, CutNoSegmentOnlyIfEachOneBeginsAndEndsWithASegment) {
  for (const std::int32_t gangs : {1, 2, 3, 5, 8, 33}) {
    for (const std::int32_t segments : {1, 2, 3, 6, 24}) {
      for (const std::int32_t segment_units : {1, 2, 3, 8}) {
        for (const bool fixed : {false, true}) {
          Parameters parameters = parameters_for(gangs, 1);
          parameters.segment_units = segment_units;
          parameters.fixed_parts = fixed;
          const std::int32_t units = segments * segment_units;
          const Shares shares(parameters, units);
          bool cuts = fixed && segment_units > 1;
          for (std::int32_t gang = 0; gang < shares.gangs(); ++gang)
            cuts |= shares.begin(gang) % segment_units != 0;
          EXPECT_EQ(cuts_segments(parameters, units), cuts)
              << gangs << " gangs, " << segments << " segments of " << segment_units;
        }
      }
    }
  }
}

// What the blocks store of a segment is what the combine kernel reads, in the order of the keys.
TEST(Parts, OfASegmentAreThoseThatItsGangsStore) {
  for (const bool fixed : {false, true}) {
    Parameters parameters = parameters_for(5, 1);
    parameters.fixed_parts = fixed;
    const std::int32_t units = 23;
    const Shares shares(parameters, units);
    for (std::int32_t first = 0; first < units; ++first) {
      for (std::int32_t end = first + 1; end <= units; ++end) {
        Segment segment = {};
        segment.first_unit = first;
        segment.units = end - first;
        const Parts parts = parts_of(parameters, shares, segment);
        std::int32_t part = 0;
        for (std::int32_t unit = first; unit < end; ++part) {
          const std::int32_t gang = shares.gang_of(unit);
          EXPECT_EQ(parts.number(part), part_number(parameters, segment, unit, gang));
          unit = fixed ? unit + 1 : std::min(end, shares.begin(gang + 1));
        }
        EXPECT_EQ(parts.count, part);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::decode
