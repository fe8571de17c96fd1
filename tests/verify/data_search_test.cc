// The random search over data draws every kind, and its cases follow from the seed alone.
#include "support/data_search.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "verify/instance.h"

namespace tilewise::tests {
namespace {

using verify::Case;
using verify::Distribution;
using verify::Operation;

constexpr Operation kOperations[] = {Operation::kForward, Operation::kBackward};
constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16};
constexpr std::uint64_t kSeeds = 500;

// Whether the bytes of all inputs are equal; NaN has bytes, too.
bool equal_inputs(const Case& a, const Case& b) {
  const verify::Instance first(a);
  const verify::Instance second(b);
  for (const verify::TensorMember member :
       {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dout,
        &tilewise_problem::bias, &tilewise_problem::mask}) {
    const tilewise_tensor& x = first.request().*member;
    const tilewise_tensor& y = second.request().*member;
    if (verify::element_count(x) != verify::element_count(y)) return false;
    const std::size_t bytes =
        static_cast<std::size_t>(verify::element_count(x) * problem::dtype_size(x.dtype));
    if (bytes > 0 && std::memcmp(x.data, y.data, bytes) != 0) return false;
  }
  return true;
}

TEST(DataSearch, EveryKindOfDataOccursInEveryDtype) {
  for (const std::int32_t dtype : kDtypes) {
    std::set<Distribution> found;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Case c = searched_case(seed, Operation::kBackward, dtype);
      for (const verify::DataPart& part : c.distribution.parts) found.insert(part.kind);
      if (c.distribution.parts.empty()) found.insert(Distribution::kNormal);
    }
    for (const verify::DataKind& kind : verify::data_kinds())
      EXPECT_EQ(found.count(kind.kind), 1u) << kind.name;
  }
}

TEST(DataSearch, EveryMaskOccurs) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Case c = searched_case(seed, Operation::kForward, TILEWISE_BF16);
    if (c.causal) found.insert(c.alignment == TILEWISE_TOP_LEFT ? "top-left" : "causal");
    if (c.window_left >= 0) found.insert("window");
    if (c.mask.present) found.insert("mask");
    if (c.bias.present) found.insert("bias");
    if (!c.used.empty()) found.insert("used");
  }
  EXPECT_EQ(found.size(), 6u);
}

TEST(DataSearch, ASeedAlwaysGivesTheSameDescriptionAndNumbers) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::int32_t dtype = kDtypes[seed % 4];
    const Operation operation = kOperations[seed % 2];
    const Case c = searched_case(seed, operation, dtype);
    EXPECT_EQ(describe(c), describe(searched_case(seed, operation, dtype)));
    EXPECT_TRUE(equal_inputs(c, searched_case(seed, operation, dtype))) << describe(c);
    EXPECT_FALSE(equal_inputs(c, searched_case(seed + 1, operation, dtype))) << describe(c);
  }
}

// What a search finds is measured by `tilewise bench --data` under the name that it prints.
TEST(DataSearch, ThePrintedNameGivesTheData) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Case c = searched_case(seed, Operation::kForward, TILEWISE_FP32);
    std::string error;
    const auto data = verify::parse_data(data_name(c.distribution), &error);
    ASSERT_TRUE(data.has_value()) << error;
    EXPECT_EQ(*data, c.distribution);
    EXPECT_NE(describe(c).find("inputs=" + data_name(c.distribution)), std::string::npos);
  }
}

TEST(DataSearch, TheNormalTwinDiffersInNothingButItsData) {
  const Case c = searched_case(7, Operation::kForward, TILEWISE_BF16);
  Case twin = with_normal_data(c);
  EXPECT_EQ(data_name(twin.distribution), "normal");
  twin.distribution = c.distribution;
  EXPECT_EQ(describe(twin), describe(c));
}

}  // namespace
}  // namespace tilewise::tests
