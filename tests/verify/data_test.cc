// Each kind of data has the numbers that its name claims, and names can be read back.
#include "verify/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "verify/instance.h"

namespace tilewise::verify {
namespace {

constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16};

Case small_case(const std::string& name, std::int32_t dtype = TILEWISE_FP32) {
  Case c;
  c.operation = Operation::kBackward;
  c.dtype = dtype;
  c.batch = 2;
  c.q_len = 20;
  c.k_len = 30;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = c.value_dim = 8;
  c.bias.present = true;
  std::string error;
  const std::optional<Data> data = parse_data(name, &error);
  EXPECT_TRUE(data.has_value()) << error;
  c.distribution = data.value_or(Data());
  return c;
}

std::vector<double> numbers_of(const tilewise_tensor& tensor) {
  std::vector<double> numbers;
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    numbers.push_back(read_element(tensor, offset));
  });
  return numbers;
}

std::vector<double> numbers_of(const std::string& name, TensorMember member,
                               std::int32_t dtype = TILEWISE_FP32) {
  return numbers_of(Instance(small_case(name, dtype)).request().*member);
}

template <class Claim>
std::int64_t count(const std::vector<double>& numbers, Claim claim) {
  return std::count_if(numbers.begin(), numbers.end(), claim);
}
bool is_nan(double x) { return std::isnan(x); }
bool is_infinite(double x) { return std::isinf(x); }

// The parameter makes a name of each kind valid.
std::string name_of(const DataKind& kind) {
  const bool required = kind.parameter != nullptr && std::isnan(kind.fallback);
  return kind.name + std::string(required ? ":2" : "");
}

TEST(Data, KindsAreListedInTheOrderOfTheEnumeration) {
  int number = 0;
  for (const DataKind& kind : data_kinds()) EXPECT_EQ(static_cast<int>(kind.kind), number++);
  EXPECT_EQ(static_cast<int>(Distribution::kRepeated) + 1, number);
}

TEST(Data, NamesAreReadBack) {
  std::string error;
  for (const DataKind& kind : data_kinds()) {
    const std::string name = name_of(kind);
    EXPECT_EQ(data_name(parse_data(name, &error).value()), name);
  }
  for (const char* name : {"scaled:3000", "scaled:-0.5+rising:7+outliers", "nan-v:0.01+inf-k",
                           "scaled:1e+30+scaled-v:1e-40"})
    EXPECT_EQ(data_name(parse_data(name, &error).value()), name);
  EXPECT_EQ(parse_data("normal+nan-k", &error), Data(Distribution::kNanK));
}

TEST(Data, WrongNamesAreRefusedWithTheNamesOrTheLimits) {
  for (const auto& [name, word] : {std::pair("", "sawtooth"),
                                   {"fast", "sawtooth"},
                                   {"nan-k+", "sawtooth"},
                                   {"scaled", "scaled:X"},
                                   {"scaled:", "1e+30"},
                                   {"scaled:nan", "1e+30"},
                                   {"scaled:1x", "1e+30"},
                                   {"sawtooth:1", "from 2"},
                                   {"nan-k:1.5", "from 0 to 1"},
                                   {"zero-v:1", "no parameter"}}) {
    std::string error;
    EXPECT_FALSE(parse_data(name, &error).has_value()) << name;
    EXPECT_NE(error.find(word), std::string::npos) << error;
    EXPECT_NE(error.find('"' + std::string(name).substr(name == std::string("nan-k+") ? 6 : 0)),
              std::string::npos)
        << error;
  }
}

// A kind that changed a tensor which it does not list would be measured on shared, unchanged
// memory.
TEST(Data, AKindChangesTheTensorsThatItListsAndNoOthers) {
  for (const DataKind& kind : data_kinds()) {
    for (const TensorMember member :
         {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dout,
          &tilewise_problem::bias}) {
      const std::vector<double> normal = numbers_of("normal", member);
      const std::vector<double> numbers = numbers_of(name_of(kind), member);
      const bool listed = changes(small_case(name_of(kind)).distribution, member);
      const bool likely = kind.kind != Distribution::kOutliers &&  // one of 1000 keys, or numbers
                          kind.kind != Distribution::kOutlierElements;
      if (listed && likely) {
        EXPECT_NE(normal, numbers) << kind.name;
      }
      if (!listed) {
        EXPECT_EQ(normal, numbers) << kind.name;
      }
    }
  }
}

TEST(Data, OneNumberOfEachSequenceIsNotFinite) {
  for (const std::int32_t dtype : kDtypes) {
    EXPECT_EQ(count(numbers_of("nan-q", &tilewise_problem::q, dtype), is_nan), 2);
    EXPECT_EQ(count(numbers_of("nan-dout", &tilewise_problem::dout, dtype), is_nan), 2);
    EXPECT_EQ(count(numbers_of("inf-v", &tilewise_problem::v, dtype), is_infinite), 2);
  }
  const Instance instance(small_case("nan-k"));
  const tilewise_tensor& k = instance.request().k;
  EXPECT_TRUE(std::isnan(read_element(k, 1 * k.strides[0] + 10 * k.strides[1])));
}

TEST(Data, PackedSequencesEachHaveTheirOwnNan) {
  Case c = small_case("nan-k");
  c.q_packed = c.k_packed = true;
  c.q_lengths = {6, 0, 9};
  c.k_lengths = {6, 0, 9};
  c.batch = 3;
  c.unowned = 2;
  c.bias.present = false;
  const Instance instance(c);
  const tilewise_tensor& k = instance.request().k;
  EXPECT_EQ(count(numbers_of(k), is_nan), 2);
  for (const std::int64_t token : {2 + 6 / 3, 2 + 6 + 9 / 3})
    EXPECT_TRUE(std::isnan(read_element(k, token * k.strides[0]))) << token;
}

TEST(Data, SharedKeysKeepTheirNan) {
  Case c = small_case("inf-k");
  c.storage = Storage::kExpanded;
  EXPECT_GT(count(numbers_of(Instance(c).request().k), is_infinite), 0);
}

TEST(Data, APartOfTheNumbersIsNotFinite) {
  const std::vector<double> half = numbers_of("nan-v:0.5", &tilewise_problem::v);
  EXPECT_NEAR(static_cast<double>(count(half, is_nan)), 0.5 * static_cast<double>(half.size()),
              0.1 * static_cast<double>(half.size()));
  const std::vector<double> all = numbers_of("inf-k:1", &tilewise_problem::k);
  EXPECT_EQ(count(all, is_infinite), static_cast<std::int64_t>(all.size()));
}

TEST(Data, MagnitudesFitTheDtype) {
  const auto least = [](std::int32_t dtype) {
    return dtype == TILEWISE_FP64 ? 0x1p-1022 : dtype == TILEWISE_FP16 ? 0x1p-14 : 0x1p-126;
  };
  const auto huge = [](std::int32_t dtype) {
    return dtype == TILEWISE_FP64 ? 1e300 : dtype == TILEWISE_FP16 ? 1e4 : 1e37;
  };
  for (const std::int32_t dtype : kDtypes) {
    for (const double x : numbers_of("denormal-v", &tilewise_problem::v, dtype))
      EXPECT_LT(std::abs(x), least(dtype));
    double largest = 0;
    for (const double x : numbers_of("huge-v", &tilewise_problem::v, dtype)) {
      EXPECT_TRUE(std::isfinite(x));
      largest = std::max(largest, std::abs(x));
    }
    EXPECT_GT(largest, huge(dtype));
    EXPECT_EQ(
        count(numbers_of("zero-v", &tilewise_problem::v, dtype), [](double x) { return x != 0; }),
        0);
    EXPECT_EQ(count(numbers_of("positive-v", &tilewise_problem::v, dtype),
                    [](double x) { return x < 0; }),
              0);
  }
}

// Returns the score of a row with each key of the first head.
std::vector<double> scores_of(const std::string& name, std::int64_t row) {
  const Instance instance(small_case(name));
  const tilewise_problem& request = instance.request();
  std::vector<double> scores(30, 0);
  for (std::int64_t key = 0; key < 30; ++key) {
    for (std::int64_t c = 0; c < 8; ++c) {
      scores[static_cast<std::size_t>(key)] +=
          read_element(request.q, row * request.q.strides[1] + c) *
          read_element(request.k, key * request.k.strides[1] + c);
    }
  }
  return scores;
}

TEST(Data, ScoresAreInTheOrderThatTheNameSays) {
  for (const std::int64_t row : {0, 7, 19}) {
    const std::vector<double> rising = scores_of("rising", row);
    const std::vector<double> falling = scores_of("falling", row);
    const std::vector<double> sawtooth = scores_of("sawtooth:10", row);
    for (std::size_t key = 1; key < 30; ++key) {
      EXPECT_GT(rising[key], rising[key - 1]);
      EXPECT_LT(falling[key], falling[key - 1]);
      EXPECT_EQ(sawtooth[key] > sawtooth[key - 1], key % 10 != 0);
    }
  }
}

TEST(Data, OutlierKeysAreThoseOfAllHeads) {
  Case c = small_case("outliers:1000");
  c.k_len = 5000;
  c.bias.present = false;
  const Instance instance(c);
  const tilewise_tensor& k = instance.request().k;
  int outliers = 0;
  for (std::int64_t key = 0; key < c.k_len; ++key) {
    const auto large = [&](std::int64_t head) {
      double sum = 0;
      for (std::int64_t i = 0; i < c.head_dim; ++i)
        sum += std::abs(read_element(k, key * k.strides[1] + head * k.strides[2] + i));
      return sum > 100;
    };
    EXPECT_EQ(large(0), large(1)) << key;
    outliers += large(0) ? 1 : 0;
  }
  EXPECT_GT(outliers, 0);
  EXPECT_LT(outliers, 25);
}

TEST(Data, AllHasEveryKindThatNeedsNoOtherTensor) {
  tilewise_problem request;
  tilewise_problem_init(&request);
  for (const Data& data : all_data()) {
    for (const DataPart& part : data.parts) {
      const bool gradient =
          part.kind == Distribution::kNanDout || part.kind == Distribution::kInfDout;
      EXPECT_TRUE(!gradient || lacking_tensor(data, request) != nullptr);
    }
  }
  for (const DataKind& kind : data_kinds()) {
    if (kind.kind == Distribution::kScaledV) continue;  // huge-v and denormal-v are its ends
    const std::vector<Data> all = all_data();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Data& data) {
      return kind.kind == Distribution::kNormal
                 ? data.parts.empty()
                 : !data.parts.empty() && data.parts[0].kind == kind.kind;
    })) << kind.name;
  }
}

}  // namespace
}  // namespace tilewise::verify
