// Finite inputs of any size take no slow path, and non-finite ones few. Results are those of the
// oracle in both cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "cuda/emulation/slow_path_counts.h"
#include "registry/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

using cuda::tile::SlowPath;
using Request = tilewise_problem;

struct Kind {
  const char* name;
  std::function<void(const Request&)> edit;
};

void scale_elements(const tilewise_tensor& tensor, double factor) {
  const std::vector<double> values = verify::numbers_of(tensor);
  set_elements(tensor,
               [&](std::int64_t i) { return factor * values[static_cast<std::size_t>(i)]; });
}

// Column 0 of K adds score(key) to the scores of every row.
void add_scores(const Request& request, double (*score)(double key)) {
  const std::int64_t dim = request.q.shape[3];
  const std::vector<double> q = verify::numbers_of(request.q);
  const std::vector<double> k = verify::numbers_of(request.k);
  set_elements(request.q, [&](std::int64_t i) {
    return i % dim == 0 ? std::sqrt(static_cast<double>(dim)) : q[static_cast<std::size_t>(i)];
  });
  set_elements(request.k, [&](std::int64_t i) {
    const RowIndex at = row_index(request.k, TILEWISE_BSHD, i);
    return at.column == 0 ? score(static_cast<double>(at.row)) : k[static_cast<std::size_t>(i)];
  });
}

std::int64_t total_count() {
  std::int64_t total = 0;
  for (const std::int64_t count : emulation::slow_path_counts) total += count;
  return total;
}

void judge(const char* kernel, const Case& c, const Kind& kind) {
  verify::Judge judge(c, kind.edit);
  std::ranges::fill(emulation::slow_path_counts, 0);
  const verify::Verdict verdict = judge.judge(kernel);
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << kind.name << ": " << verdict.text;
}

Case case_for(const char* kernel, std::int64_t dim, bool causal) {
  const bool fp32 = std::string(kernel) == "cuda_fp32";
  Case c = make_case(Operation::kForward, fp32 ? TILEWISE_FP32 : TILEWISE_BF16,
                     {1, 140, 300, 2, 1, dim});
  c.causal = causal;
  return c;
}

constexpr const char* kKernels[] = {"cuda_decode", "cuda_sm80", "cuda_fp32", "cuda_flash1",
                                    "cuda_standard"};

TEST(SlowPath, NoFiniteInputTakesOne) {
  const Kind kinds[] = {
      {"scores times 64", [](const Request& r) { scale_elements(r.q, 64); }},
      {"scores times 3000", [](const Request& r) { scale_elements(r.q, 3000); }},
      {"scores of 1e12",
       [](const Request& r) {
         scale_elements(r.q, 1e6);
         scale_elements(r.k, 1e6);
       }},
      {"rising", [](const Request& r) { add_scores(r, [](double key) { return key / 3; }); }},
      {"falling", [](const Request& r) { add_scores(r, [](double key) { return -key / 3; }); }},
      {"sawtooth",
       [](const Request& r) { add_scores(r, [](double key) { return std::fmod(key, 70.0); }); }},
      {"outliers",
       [](const Request& r) {
         add_scores(r, [](double key) { return std::fmod(key, 97.0) == 5 ? 200.0 : 0.0; });
       }},
      {"V of 1e37", [](const Request& r) { scale_elements(r.v, 1e37); }},
      {"denormal V", [](const Request& r) { scale_elements(r.v, 1e-39); }},
  };
  for (const char* kernel : kKernels) {
    for (const Kind& kind : kinds) {
      for (const std::int64_t dim : {64, 128}) {
        judge(kernel, case_for(kernel, dim, dim == 128), kind);
        EXPECT_EQ(total_count(), 0) << kernel << ", " << kind.name << ", D " << dim;
      }
    }
  }
}

TEST(SlowPath, ColumnsOfMinusInfinityInTheBiasTakeNone) {
  for (const char* kernel : {"cuda_decode", "cuda_sm80", "cuda_fp32", "cuda_standard"}) {
    Case c = case_for(kernel, 64, false);
    c.bias = {true, 1, {true, true, true, true}};
    judge(kernel, c, {"bias", [](const Request& request) {
                        set_elements(request.bias, [](std::int64_t i) {
                          return i < 150 || i % 3 == 0 ? -HUGE_VAL : 0.5;
                        });
                      }});
    EXPECT_EQ(total_count(), 0) << kernel;
  }
}

// Only some keys have a large V, and the sample misses them: tiles of queries are computed twice.
TEST(SlowPath, LargeValuesThatTheSampleMissesTakeASecondPass) {
  // Columns have alternating signs, so that the errors of a row have no mean.
  const auto edit = [](const Request& request) {
    const std::vector<double> v = verify::numbers_of(request.v);
    set_elements(request.v, [&](std::int64_t i) {
      const RowIndex at = row_index(request.v, TILEWISE_BSHD, i);
      const double own = v[static_cast<std::size_t>(i)];
      const double large = (at.column % 2 == 0 ? 6e37 : -6e37) * std::abs(own);
      return at.row % 128 >= 100 ? large : own;
    });
  };
  for (const char* kernel : {"cuda_decode", "cuda_sm80", "cuda_fp32", "cuda_flash1"}) {
    judge(kernel, case_for(kernel, 64, false), {"few large V", edit});
    EXPECT_GT(emulation::slow_path_count(SlowPath::kSecondPass), 0) << kernel;
  }
}

// A block of cuda_decode reads V once more, and computes nothing again.
TEST(SlowPath, NonFiniteValuesOfADecodeAreSearchedOnce) {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 1, 1500, 4, 2, 128});
  const std::int64_t blocks = 8;  // of the emulated device, at most
  const std::int64_t groups = 4;  // of a block, each of which decides for itself
  for (const double with : {std::nan(""), HUGE_VAL}) {
    judge("cuda_decode", c, {"non-finite V", [&](const Request& request) {
                               verify::write_element(request.v, 700 * request.v.strides[1] + 5,
                                                     with);
                             }});
    EXPECT_GT(emulation::slow_path_count(SlowPath::kScannedValues), 0);
    EXPECT_LE(emulation::slow_path_count(SlowPath::kScannedValues), blocks * groups);
    EXPECT_EQ(emulation::slow_path_count(SlowPath::kSecondPass), 0);
  }
}

// NaN and infinity flow through the products. Only tiles of keys that an edge cuts take more.
TEST(SlowPath, NonFiniteInputsTakeItWhereAnEdgeCutsTheTile) {
  const double nan = std::nan("");
  const auto spoil = [](const tilewise_tensor& tensor, double with, std::int64_t row = 33) {
    return verify::write_element(tensor, row * tensor.strides[1] + 5, with);
  };
  struct Shape {
    const char* kernel;
    std::int64_t dim;
  };
  // At D 256 cuda_sm80 has pairs of warps, on devices with the shared memory for them.
  const Shape shapes[] = {{"cuda_sm80", 64},    {"cuda_sm80", 128}, {"cuda_sm80", 256},
                          {"cuda_fp32", 64},    {"cuda_fp32", 256}, {"cuda_flash1", 64},
                          {"cuda_standard", 64}};
  for (const auto& [kernel, dim] : shapes) {
    for (const bool causal : {false, true}) {
      for (const double poison : {nan, HUGE_VAL}) {
        const Case c = case_for(kernel, dim, causal);
        judge(kernel, c, {"K", [&](const Request& r) { spoil(r.k, poison); }});
        EXPECT_EQ(total_count(), 0) << kernel;
        judge(kernel, c, {"Q", [&](const Request& r) { spoil(r.q, poison); }});
        EXPECT_EQ(total_count(), 0) << kernel;
        judge(kernel, c, {"V", [&](const Request& r) { spoil(r.v, poison); }});
        EXPECT_EQ(emulation::slow_path_count(SlowPath::kSecondPass), 0) << kernel;
        // Key 290 lies in the last tile, which ends after the sequence, key 200 on the diagonal.
        judge(kernel, c, {"V of a cut tile", [&](const Request& r) {
                            spoil(r.v, poison, 200);
                            spoil(r.v, -poison, 290);
                          }});
        EXPECT_EQ(emulation::slow_path_count(SlowPath::kSecondPass), 0) << kernel;
        EXPECT_GT(emulation::slow_path_count(SlowPath::kNonFiniteTile), 0) << kernel;
        judge(kernel, c, {"all of V", [&](const Request& r) {
                            set_elements(r.v, [&](std::int64_t) { return poison; });
                          }});
        EXPECT_EQ(emulation::slow_path_count(SlowPath::kSecondPass), 0) << kernel;
        judge(kernel, c, {"all of K", [&](const Request& r) {
                            set_elements(r.k, [&](std::int64_t) { return nan; });
                          }});
        EXPECT_EQ(total_count(), 0) << kernel;
      }
    }
  }
}

// The kernels of the backward pass that run on the emulated device.
std::vector<const char*> gradient_kernels() {
  const char* const given = std::getenv("TILEWISE_TEST_KERNEL");
  if (given != nullptr) return {given};
  return {"cuda_sm80", "cuda_fp32"};
}

// Each of the tiles of keys computes its gradients twice, and only if an element of dO that is not
// finite may hide in a cut tile.
TEST(SlowPath, GradientsTakeASecondPassOnlyIfTheyAreNotFinite) {
  const Kind once[] = {
      {"normal", [](const Request&) {}},
      {"scores times 64", [](const Request& r) { scale_elements(r.q, 64); }},
      {"outliers",
       [](const Request& r) {
         add_scores(r, [](double key) { return std::fmod(key, 97.0) == 5 ? 200.0 : 0.0; });
       }},
      // Gradients that are not finite without a non-finite Q, K or dO are right at once.
      {"NaN in V",
       [](const Request& r) { verify::write_element(r.v, 33 * r.v.strides[1] + 5, std::nan("")); }},
  };
  const auto expect_second_passes_of = [&](const char* kernel, bool causal) {
    Case c = case_for(kernel, 64, causal);
    c.operation = Operation::kBackward;
    const std::int64_t key_tiles = c.dtype == TILEWISE_FP32 ? 5 : 3;  // of 300 keys
    for (const Kind& kind : once) {
      judge(kernel, c, kind);
      EXPECT_EQ(total_count(), 0) << kernel << ", " << kind.name;
    }
    for (const double poison : {std::nan(""), HUGE_VAL}) {
      judge(kernel, c, {"dO", [&](const Request& r) {
                          verify::write_element(r.dout, 33 * r.dout.strides[1] + 5, poison);
                        }});
      EXPECT_GT(emulation::slow_path_count(SlowPath::kNonFinitePass), 0) << kernel;
      EXPECT_LE(total_count(), key_tiles) << kernel;
    }
  };
  for (const char* kernel : gradient_kernels()) {
    for (const bool causal : {false, true}) expect_second_passes_of(kernel, causal);
  }
}

// The Hopper kernel computes some query tiles in careful passes. There are 12 of them, several for
// each block.
constexpr std::int64_t kQueryTiles = 12;
constexpr std::int64_t kHopperDims[] = {64, 128, 256};

Case hopper_case(std::int64_t dim, bool causal) {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 300, 320, 4, 1, dim});
  c.causal = causal;
  return c;
}

void judge_hopper(const Case& c, const Kind& kind) {
  judge("cuda_sm90", c, kind);
  EXPECT_LE(emulation::slow_path_count(SlowPath::kCarefulTile), 2 * kQueryTiles) << kind.name;
  EXPECT_LE(emulation::slow_path_count(SlowPath::kScannedValues), 2 * kQueryTiles) << kind.name;
}

TEST(CarefulPasses, ScoresOfAnySizeTakeOneForEachTileAtMost) {
  const Kind kinds[] = {
      {"normal", [](const Request&) {}},
      {"scores times 64", [](const Request& r) { scale_elements(r.q, 64); }},
      {"scores times 3000", [](const Request& r) { scale_elements(r.q, 3000); }},
      {"falling", [](const Request& r) { add_scores(r, [](double key) { return -key / 3; }); }},
      {"rising", [](const Request& r) { add_scores(r, [](double key) { return key / 3; }); }},
      {"denormal V", [](const Request& r) { scale_elements(r.v, 1e-39); }},
  };
  for (const std::int64_t dim : kHopperDims) {
    for (const Kind& kind : kinds) {
      judge_hopper(hopper_case(dim, dim == 128), kind);
      EXPECT_LE(emulation::slow_path_count(SlowPath::kCarefulTile), kQueryTiles)
          << kind.name << ", D " << dim;
      EXPECT_EQ(emulation::slow_path_count(SlowPath::kScannedValues), 0) << kind.name;
      const bool tame = kind.name == std::string("normal") || dim == 256;  // takes every maximum
      EXPECT_TRUE(!tame || total_count() == 0) << kind.name << ", D " << dim;
    }
  }
}

// A sample shows that values are large, before their sum overflows.
TEST(CarefulPasses, LargeValuesTakeOneForEachTile) {
  for (const std::int64_t dim : kHopperDims) {
    for (const bool causal : {false, true}) {
      judge_hopper(hopper_case(dim, causal),
                   {"V of 5e37", [](const Request& r) { scale_elements(r.v, 5e37); }});
      EXPECT_EQ(emulation::slow_path_count(SlowPath::kCarefulTile), kQueryTiles) << "D " << dim;
      EXPECT_EQ(emulation::slow_path_count(SlowPath::kScannedValues), 0) << "D " << dim;
      EXPECT_EQ(emulation::slow_path_count(SlowPath::kNonFiniteTile), 0) << "D " << dim;
    }
  }
}

// A sum of large values that the sample misses overflows before it is known that they are large.
TEST(CarefulPasses, LargeValuesThatTheSampleMissesTakeTwoForEachTileAtMost) {
  for (const std::int64_t dim : kHopperDims) {
    judge_hopper(hopper_case(dim, false), {"V of 5e37, most keys", [](const Request& r) {
                                             const std::vector<double> v = verify::numbers_of(r.v);
                                             set_elements(r.v, [&](std::int64_t i) {
                                               const RowIndex at = row_index(r.v, TILEWISE_BSHD, i);
                                               const double own = v[static_cast<std::size_t>(i)];
                                               return at.row % 64 == 0 ? own : 5e37 * own;
                                             });
                                           }});
    EXPECT_GT(emulation::slow_path_count(SlowPath::kCarefulTile), 0) << "D " << dim;
    EXPECT_GT(emulation::slow_path_count(SlowPath::kScannedValues), 0) << "D " << dim;
  }
}

// Rows that have seen a NaN score are what they ought to be: V is not read for them.
TEST(CarefulPasses, TilesOfRowsThatAreAllNaNAreNotSearched) {
  for (const std::int64_t dim : kHopperDims) {
    judge_hopper(hopper_case(dim, false), {"NaN in K", [](const Request& r) {
                                             verify::write_element(r.k, 33 * r.k.strides[1] + 5,
                                                                   std::nan(""));
                                           }});
    EXPECT_EQ(total_count(), 0) << "D " << dim;
  }
}

// An infinite score is an overflow to a lazy max.
TEST(CarefulPasses, NonFiniteInputsThatAllRowsSeeTakeOneForEachTileAtMost) {
  for (const std::int64_t dim : kHopperDims) {
    for (const auto member : {&Request::q, &Request::k, &Request::v}) {
      for (const double poison : {std::nan(""), HUGE_VAL}) {
        judge_hopper(hopper_case(dim, false),
                     {"one element", [&](const Request& r) {
                        verify::write_element(r.*member, 33 * (r.*member).strides[1] + 5, poison);
                      }});
        EXPECT_LE(emulation::slow_path_count(SlowPath::kCarefulTile),
                  std::isnan(poison) ? 0 : kQueryTiles)
            << "D " << dim;
      }
    }
  }
}

// Only key tiles on the diagonal take more: two or three for each tile of queries.
TEST(CarefulPasses, NonFiniteValuesTakeItWhereAnEdgeCutsTheTile) {
  for (const std::int64_t dim : kHopperDims) {
    for (const double poison : {std::nan(""), HUGE_VAL}) {
      judge_hopper(hopper_case(dim, true), {"every fifth element of V", [&](const Request& r) {
                                              const std::vector<double> v = verify::numbers_of(r.v);
                                              set_elements(r.v, [&](std::int64_t i) {
                                                return i % 5 == 0 ? poison
                                                                  : v[static_cast<std::size_t>(i)];
                                              });
                                            }});
      EXPECT_GT(emulation::slow_path_count(SlowPath::kNonFiniteTile), 0) << "D " << dim;
      EXPECT_LE(emulation::slow_path_count(SlowPath::kNonFiniteTile), 3 * kQueryTiles)
          << "D " << dim;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
