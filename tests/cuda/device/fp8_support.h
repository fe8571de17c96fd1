// For the tests of fp8 on devices: kinds of data, and codes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device/support.h"

namespace tilewise::tests {

// The kinds of data on which every kernel of fp8 follows the accuracy rule.
inline std::vector<verify::Data> data_of_fp8() {
  std::vector<verify::Data> all;
  for (const char* const kind : {"scaled:64",  "scaled:3000", "outliers",   "outlier-elements",
                                 "rising",     "falling",     "sawtooth",   "alternating",
                                 "equal-keys", "one-hot",     "huge-v",     "positive-v",
                                 "offset",     "tiny-qk",     "denormal-v", "zero-v",
                                 "nan-q",      "nan-k",       "nan-v",      "nan-v:0.01",
                                 "inf-q",      "inf-k",       "inf-v"}) {
    std::string error;
    const auto data = verify::parse_data(kind, &error);
    EXPECT_TRUE(data.has_value()) << error;
    if (data.has_value()) all.push_back(*data);
  }
  return all;
}

inline std::uint8_t& code_at(const tilewise_tensor& tensor, std::int64_t offset) {
  return static_cast<std::uint8_t*>(tensor.data)[offset];
}

// One of three codes that are not finite: NaN, or infinity where the format has it.
inline std::uint8_t poison_code(std::int32_t dtype, std::int64_t number) {
  constexpr std::uint8_t kPoisons[2][3] = {{0x7f, 0xff, 0x7f}, {0x7e, 0x7c, 0xfc}};
  return kPoisons[dtype == TILEWISE_E5M2 ? 1 : 0][number % 3];
}

// Sets the rows from `begin` on of a sequence of one head to NaN.
inline void poison_rows(const tilewise_tensor& tensor, std::int64_t batch, std::int64_t begin) {
  for (std::int64_t row = begin; row < tensor.shape[1]; ++row) {
    std::memset(&code_at(tensor, batch * tensor.strides[0] + row * tensor.strides[1]), 0x7f,
                static_cast<std::size_t>(tensor.shape[3]));
  }
}

}  // namespace tilewise::tests
