// Appends on a device: the bits of the CPU, and nothing outside of the cache whatever lists hold.
#include <cstring>

#include "capi/append_call.h"
#include "cuda/device/support.h"

namespace tilewise::tests {
namespace {

// Runs the call on copies of its tensors in device memory, and copies them back.
void run_on_device(AppendCall& own) {
  tilewise_append call = own.call;
  std::vector<verify::DeviceMemory> copies;
  copies.reserve(own.memories().size());
  const auto moved = [&](tilewise_tensor& tensor, const void* data) {
    tensor.data = const_cast<void*>(data);
    tensor.device = TILEWISE_CUDA;
  };
  const bool in_place = call.q.data == call.q_rotated.data;
  for (const AppendCall::Memory& memory : own.memories()) {
    const auto bytes = static_cast<std::int64_t>(memory.bytes.size());
    copies.emplace_back(0, bytes);
    ASSERT_EQ(cuda::copy(0, copies.back().data(), memory.bytes.data(), bytes, nullptr),
              TILEWISE_OK);
    const auto offset = reinterpret_cast<char*>(memory.tensor) - reinterpret_cast<char*>(&own.call);
    moved(*reinterpret_cast<tilewise_tensor*>(reinterpret_cast<char*>(&call) + offset),
          copies.back().data());
  }
  if (in_place) call.q_rotated = call.q;
  ASSERT_EQ(tilewise_append_run(&call, nullptr), TILEWISE_OK) << tilewise_last_error();
  for (std::size_t i = 0; i < copies.size(); ++i) {
    AppendCall::Memory& memory = own.memories()[i];
    ASSERT_EQ(cuda::copy(0, memory.bytes.data(), copies[i].data(),
                         static_cast<std::int64_t>(memory.bytes.size()), nullptr),
              TILEWISE_OK);
  }
}

TEST(Device, AppendHasTheBitsOfTheCpu) {
  if (!has_device()) GTEST_SKIP() << "no device";
  int number = 0;
  for (const AppendCase& c : append_cases()) {
    AppendCall expected(c, run_seed());
    AppendCall own(c, run_seed());
    ASSERT_EQ(tilewise_append_run(&expected.call, nullptr), TILEWISE_OK);
    run_on_device(own);
    for (std::size_t i = 0; i < own.memories().size(); ++i)
      EXPECT_EQ(own.memories()[i].bytes, expected.memories()[i].bytes)
          << number << ", tensor " << i;
    ++number;
  }
}

// Tokens whose place is not in the cache are left out; the others are written.
TEST(Device, AppendSkipsTokensThatTheCacheLacks) {
  if (!has_device()) GTEST_SKIP() << "no device";
  AppendCase c;
  c.own_positions = true;
  AppendCall expected(c, 1);
  AppendCall own(c, 1);
  const auto set = [&](std::int64_t b, std::int32_t held, std::int64_t position) {
    static_cast<std::int32_t*>(own.call.cache_seqlens.data)[b] = held;
    static_cast<std::int64_t*>(own.call.rotary_seqlens.data)[b] = position;
  };
  set(0, -1, INT64_MIN);
  set(2, INT32_MAX, INT64_MAX);
  ASSERT_EQ(tilewise_append_run(&expected.call, nullptr), TILEWISE_OK);
  const std::vector<double> before = verify::numbers_of(own.call.k_cache);
  const std::vector<double> after = verify::numbers_of(expected.call.k_cache);
  run_on_device(own);
  const std::vector<double> found = verify::numbers_of(own.call.k_cache);
  const std::size_t row = found.size() / 5;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_EQ(found[i], i / row == 1 ? after[i] : before[i]) << i;
  AppendCase paged;
  paged.page_size = 3;
  AppendCall pages(paged, 1);
  const std::vector<double> kept = verify::numbers_of(pages.call.v_cache);
  verify::for_each_element(pages.call.page_table, [&](std::int64_t i, std::int64_t offset) {
    static_cast<std::int32_t*>(pages.call.page_table.data)[offset] = i % 3 == 0   ? -1
                                                                     : i % 3 == 1 ? 30
                                                                                  : INT32_MIN;
  });
  run_on_device(pages);
  EXPECT_EQ(verify::numbers_of(pages.call.v_cache), kept);
}

}  // namespace
}  // namespace tilewise::tests
