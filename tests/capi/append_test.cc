// tilewise_append_run() on the CPU against the formula, and what it refuses.
#include <gtest/gtest.h>

#include <tilewise/tilewise_append.hpp>

#include <cmath>

#include "capi/append_call.h"

namespace tilewise::tests {
namespace {

// A tensor before the call, by index.
class NumbersBefore {
 public:
  explicit NumbersBefore(const tilewise_tensor& tensor)
      : tensor_(tensor), numbers_(verify::numbers_of(tensor)) {}
  double& at(const std::vector<std::int64_t>& index) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < index.size(); ++d) place = place * tensor_.shape[d] + index[d];
    return numbers_[static_cast<std::size_t>(place)];
  }
  const std::vector<double>& all() const { return numbers_; }

 private:
  tilewise_tensor tensor_;
  std::vector<double> numbers_;
};

// The index of row `row` of sequence b, at a head.
std::vector<std::int64_t> row_place(bool packed, std::int64_t start, std::int64_t b,
                                    std::int64_t row, std::int64_t head, std::int64_t column) {
  if (packed) return {start + row, head, column};
  return {b, row, head, column};
}

// What a column of a rotated row is.
template <class Read>
double rotated_number(const AppendCase& c, NumbersBefore& cos, NumbersBefore& sin,
                      std::int64_t position, std::int64_t column, const Read& read) {
  if (column >= 2 * c.pairs) return read(column);
  const std::int64_t pair = c.interleaved ? column / 2 : column % c.pairs;
  const bool first = c.interleaved ? column % 2 == 0 : column < c.pairs;
  const double x = read(c.interleaved ? 2 * pair : pair);
  const double y = read(c.interleaved ? 2 * pair + 1 : pair + c.pairs);
  const double u = cos.at({position, pair});
  const double v = sin.at({position, pair});
  return first ? x * u - y * v : x * v + y * u;
}

std::vector<std::int64_t> numbers_of_list(const tilewise_tensor& tensor) {
  std::vector<std::int64_t> list;
  verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    list.push_back(tensor.dtype == TILEWISE_INT64
                       ? static_cast<const std::int64_t*>(tensor.data)[offset]
                       : static_cast<const std::int32_t*>(tensor.data)[offset]);
  });
  return list;
}

void expect_numbers_near(const tilewise_tensor& tensor, const NumbersBefore& expected,
                         std::int32_t dtype, const std::string& name) {
  // Products of normal numbers and their sum are rounded to fp32, then to the dtype.
  constexpr double kRounding = 0x1p-19;
  const double unit = dtype == TILEWISE_FP32 ? 0 : dtype == TILEWISE_BF16 ? 0x1p-8 : 0x1p-11;
  const std::vector<double> found = verify::numbers_of(tensor);
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected.all()[i], unit * std::fabs(expected.all()[i]) + kRounding)
        << name << " " << i;
}

void expect_append_is_right(AppendCall& own) {
  const AppendCase& c = own.description();
  tilewise_append& call = own.call;
  NumbersBefore k_cache(call.k_cache), v_cache(call.v_cache), k(call.k), v(call.v);
  NumbersBefore cos(call.rotary_cos), sin(call.rotary_sin), q(call.q), q_rotated(call.q);
  const std::vector<std::int64_t> held = numbers_of_list(call.cache_seqlens);
  const std::vector<std::int64_t> first =
      call.rotary_seqlens.rank > 0 ? numbers_of_list(call.rotary_seqlens) : held;
  for (std::int64_t b = 0; b < AppendCall::kBatch; ++b) {
    const auto at = static_cast<std::size_t>(b);
    std::int64_t start = 0, rows = AppendCall::kRows, q_start = 0, queries = AppendCall::kRows;
    if (c.packed) {
      const auto starts = numbers_of_list(call.cu_seqlens_k);
      start = starts[at];
      rows = starts[at + 1] - start;
    }
    if (c.packed && c.pairs > 0) {
      const auto starts = numbers_of_list(call.cu_seqlens_q);
      q_start = starts[at];
      queries = starts[at + 1] - q_start;
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t batch = c.chosen_rows ? numbers_of_list(call.cache_batch_idx)[at] : b;
      std::int64_t key = held[at] + row;
      if (c.page_size > 0) {
        batch = numbers_of_list(call.page_table)[static_cast<std::size_t>(
            b * call.page_table.shape[1] + key / c.page_size)];
        key %= c.page_size;
      }
      for (std::int64_t head = 0; head < AppendCall::kKvHeads; ++head) {
        for (std::int64_t column = 0; column < AppendCall::kD; ++column) {
          k_cache.at({batch, key, head, column}) =
              rotated_number(c, cos, sin, first[at] + row, column, [&](std::int64_t from) {
                return k.at(row_place(c.packed, start, b, row, head, from));
              });
        }
        for (std::int64_t column = 0; column < AppendCall::kDv; ++column)
          v_cache.at({batch, key, head, column}) =
              v.at(row_place(c.packed, start, b, row, head, column));
      }
    }
    for (std::int64_t row = 0; row < (c.pairs > 0 ? queries : 0); ++row) {
      for (std::int64_t head = 0; head < AppendCall::kHeads; ++head) {
        for (std::int64_t column = 0; column < AppendCall::kD; ++column) {
          q_rotated.at(row_place(c.packed, q_start, b, row, head, column)) = rotated_number(
              c, cos, sin, first[at] + (c.q_at_end ? 0 : row), column, [&](std::int64_t from) {
                return q.at(row_place(c.packed, q_start, b, row, head, from));
              });
        }
      }
    }
  }
  ASSERT_EQ(tilewise_append_run(&call, nullptr), TILEWISE_OK) << tilewise_last_error();
  expect_numbers_near(call.k_cache, k_cache, c.dtype, "k_cache");
  expect_numbers_near(call.v_cache, v_cache, c.dtype, "v_cache");
  expect_numbers_near(call.q_rotated, q_rotated, c.dtype, "q_rotated");
}

TEST(Append, WritesRotatedRowsWhereTheyBelong) {
  TILEWISE_TRACE_SEED();
  int number = 0;
  for (const AppendCase& c : append_cases()) {
    SCOPED_TRACE("case " + std::to_string(number++));
    AppendCall call(c, run_seed());
    expect_append_is_right(call);
  }
}

struct AppendRefusal {
  void (*alter)(tilewise_append& call);
  const char* message;
};

void set_list_number(const tilewise_tensor& list, std::int64_t index, std::int32_t number) {
  static_cast<std::int32_t*>(list.data)[index] = number;
}

const AppendRefusal kAppendRefusals[] = {
    {[](tilewise_append& r) { r.interleaved = 2; }, "interleaved: is 2, must be 0 or 1"},
    {[](tilewise_append& r) { r.v.rank = 0; }, "v: is absent"},
    {[](tilewise_append& r) { r.k.data = nullptr; }, "k: data is NULL but the tensor has elements"},
    {[](tilewise_append& r) { r.k.device = TILEWISE_CUDA; },
     "k: device is cuda:0, must be that of k_cache: cpu"},
    {[](tilewise_append& r) { r.rotary_sin.rank = 0; }, "rotary_cos: given without rotary_sin"},
    {[](tilewise_append& r) { r.q.rank = 0; }, "q_rotated: given without q"},
    {[](tilewise_append& r) { r.k_cache.dtype = TILEWISE_FP64; },
     "k_cache: dtype is fp64, must be fp32, bf16 or fp16"},
    {[](tilewise_append& r) { r.v.dtype = TILEWISE_FP16; }, "v: dtype is fp16, must be bf16"},
    {[](tilewise_append& r) { r.k.strides[3] = 2; }, "k: innermost stride is 2, must be 1"},
    {[](tilewise_append& r) { r.k.shape[2] = 1; },
     "k: shape is (3, 3, 1, 14), must be (B, S, heads, width) = (3, 3, 2, 14)"},
    {[](tilewise_append& r) { r.k_cache.shape[0] = r.v_cache.shape[0] = 2; },
     "k_cache: holds 2 sequences, must hold 3"},
    {[](tilewise_append& r) { r.rotary_cos.shape[1] = r.rotary_sin.shape[1] = 8; },
     "rotary_cos: shape is (64, 8), must have at least 1 position and at most D / 2 = 7 pairs"},
    {[](tilewise_append& r) { set_list_number(r.cache_seqlens, 1, 18); },
     "cache_seqlens[1]: is 18, must be from 0 to 17"},
    {[](tilewise_append& r) { set_list_number(r.cache_seqlens, 0, -1); },
     "cache_seqlens[0]: is -1, must be from 0 to 17"},
    {[](tilewise_append& r) { r.rotary_cos.shape[0] = r.rotary_sin.shape[0] = 8; },
     "cache_seqlens with rotary_cos[1]: is 7, must be from 0 to 5"},
};

TEST(Append, RefusalsNameArgumentValueAndLimitAndWriteNothing) {
  for (const AppendRefusal& refusal : kAppendRefusals) {
    AppendCall own({}, 1);
    const std::vector<double> k_cache = verify::numbers_of(own.call.k_cache);
    tilewise_append call = own.call;
    refusal.alter(call);
    EXPECT_NE(tilewise_append_run(&call, nullptr), TILEWISE_OK);
    EXPECT_STREQ(tilewise_last_error(), refusal.message);
    EXPECT_EQ(verify::numbers_of(own.call.k_cache), k_cache) << refusal.message;
  }
  EXPECT_EQ(tilewise_append_run(nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
}

TEST(Append, RefusesPagesAndRowsThatTheCacheLacks) {
  AppendCase paged;
  paged.page_size = 3;
  AppendCall own(paged, 1);
  set_list_number(own.call.page_table, 1 * 6 + 7 / 3, 30);
  EXPECT_THROW(append(own.call), Error);
  EXPECT_STREQ(tilewise_last_error(), "page_table[8]: is 30, must be from 0 to 29");
  AppendCase chosen;
  chosen.chosen_rows = true;
  AppendCall other(chosen, 1);
  static_cast<std::int64_t*>(other.call.cache_batch_idx.data)[2] = 5;
  EXPECT_THROW(append(other.call), Error);
  EXPECT_STREQ(tilewise_last_error(), "cache_batch_idx[2]: is 5, must be from 0 to 4");
}

}  // namespace
}  // namespace tilewise::tests
