// Quantisation on a device has the bits of its definition, as on the CPU (capi/quantise_test.cc).
#include <tilewise/tilewise_quantise.h>

#include <string>
#include <vector>

#include "capi/quantise_cases.h"
#include "cuda/device/support.h"

namespace tilewise::tests {
namespace {

bool quantises() {
  cuda::DeviceInfo device;
  return has_device() && cuda::find_device(0, &device) == TILEWISE_OK && device.major >= 9;
}

// A tensor in memory of the device with the contents of one of the host; it copies them back.
class OnDevice {
 public:
  OnDevice(tilewise_tensor& tensor, void* data, std::int64_t bytes)
      : host_(data), bytes_(bytes), memory_(0, bytes) {
    if (bytes > 0) {
      EXPECT_EQ(cuda::copy(0, memory_.data(), host_, bytes, nullptr), TILEWISE_OK);
    }
    tensor.data = memory_.data();
    tensor.device = TILEWISE_CUDA;
  }
  void copy_back() {
    if (bytes_ > 0) {
      ASSERT_EQ(cuda::copy(0, host_, memory_.data(), bytes_, nullptr), TILEWISE_OK);
    }
  }

 private:
  void* host_;
  std::int64_t bytes_;
  verify::DeviceMemory memory_;
};

void quantise_on_device(const QuantiseCase& c, QuantiseTask& task) {
  tilewise_quantisation request = task.request;
  OnDevice input(request.input, task.input_bytes().data(),
                 static_cast<std::int64_t>(task.input_bytes().size()));
  OnDevice output(request.output, task.output_bytes().data(),
                  static_cast<std::int64_t>(task.output_bytes().size()));
  std::vector<OnDevice> others;
  others.reserve(3);
  if (c.scales > 0) {
    others.emplace_back(request.descale, task.scales.data(),
                        static_cast<std::int64_t>(task.scales.size() * sizeof(float)));
    others.emplace_back(request.saturated, &task.saturated, std::int64_t{sizeof(std::int64_t)});
  }
  std::vector<std::int64_t> starts = c.starts;
  if (!starts.empty())
    others.emplace_back(request.cu_seqlens, starts.data(),
                        static_cast<std::int64_t>(starts.size() * sizeof(std::int64_t)));
  ASSERT_EQ(tilewise_quantise(&request, nullptr), TILEWISE_OK) << tilewise_last_error();
  output.copy_back();
  for (OnDevice& other : others) other.copy_back();
}

void expect_definition_on_device(const QuantiseCase& c, Random& random) {
  SCOPED_TRACE(c.text());
  const std::uint64_t seed = random.bits();
  QuantiseTask expected(c);
  QuantiseTask found(c);
  for (QuantiseTask* task : {&expected, &found}) {
    Random contents(seed);
    fill_random(c, *task, contents);
  }
  QuantiseOracle(c, expected).run();
  quantise_on_device(c, found);
  EXPECT_EQ(found.scales, expected.scales);
  EXPECT_EQ(found.saturated, expected.saturated);
  ASSERT_EQ(found.output_bytes(), expected.output_bytes());
}

TEST(Device, QuantiseHasTheBitsOfItsDefinition) {
  if (!quantises()) GTEST_SKIP() << "no device since Hopper";
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int i = 0; i < 80 && !testing::Test::HasFailure(); ++i)
    expect_definition_on_device(random_case(random), random);
}

// Blocks of up to 1024 columns, and rows that lanes load 16 bytes at a time.
TEST(Device, QuantiseRotatesRowsOfEveryWidth) {
  if (!quantises()) GTEST_SKIP() << "no device since Hopper";
  Random random(run_seed());
  for (const std::int64_t width : {16, 64, 128, 256, 512, 576, 1024, 1100, 2047}) {
    for (const int scales : {1, 2, 3}) {
      QuantiseCase c;
      c.batch = 1;
      c.rows = 130;
      c.width = width;
      c.scales = scales;
      c.incoherent = true;
      c.input = scales == 2 ? TILEWISE_FP32 : TILEWISE_BF16;
      c.output = scales == 3 ? TILEWISE_E5M2 : TILEWISE_E4M3;
      expect_definition_on_device(c, random);
    }
  }
}

// A list of starts may hold anything: rows and scales stay those of the tensors.
TEST(Device, QuantiseStaysInsideWhateverStartsHold) {
  if (!quantises()) GTEST_SKIP() << "no device since Hopper";
  Random random(run_seed());
  for (const std::vector<std::int64_t>& starts :
       {std::vector<std::int64_t>{90, 20, 400}, {-5, 1000, 3}, {200, 200, 200}}) {
    QuantiseCase c;
    c.packed = true;
    c.scales = 2;
    c.starts = starts;
    QuantiseTask task(c);
    fill_normal(c, task, random.bits());
    quantise_on_device(c, task);
  }
}

TEST(Device, QuantiseNamesTheArgumentsThatItRefuses) {
  if (!quantises()) GTEST_SKIP() << "no device since Hopper";
  QuantiseCase c;
  c.width = 2048;
  c.incoherent = true;
  QuantiseTask task(c);
  tilewise_quantisation request = task.request;
  OnDevice input(request.input, task.input_bytes().data(),
                 static_cast<std::int64_t>(task.input_bytes().size()));
  EXPECT_EQ(tilewise_quantise(&request, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "output: device is cpu, must be that of input: cuda:0");
  OnDevice output(request.output, task.output_bytes().data(),
                  static_cast<std::int64_t>(task.output_bytes().size()));
  OnDevice scales(request.descale, task.scales.data(),
                  static_cast<std::int64_t>(task.scales.size() * sizeof(float)));
  request.saturated = {};
  EXPECT_EQ(tilewise_quantise(&request, nullptr), TILEWISE_UNSUPPORTED);
  EXPECT_STREQ(tilewise_last_error(), "input: D is 2048, must be at most 2047 to be rotated");
}

}  // namespace
}  // namespace tilewise::tests
