// Attention on two GPUs and on one: bf16, D 128, 32 query heads and 8 key/value heads. One GPU has
// the whole work, each of two ranks has its part. A row of the printed JSON has the medians of
// interleaved rounds, and the rate of two GPUs as a part of twice that of one.
//
//   ranks_cuda [--rounds N] [ROW...]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tilewise/tilewise_distributed.hpp>
#include <vector>

#include "cuda/host/runtime.h"
#include "cuda/host/streams.h"
#include "math/number.h"
#include "ranks.h"

namespace {

using tilewise::Operation;
using tilewise::Problem;
using tilewise::Schedule;
namespace cuda = tilewise::cuda;

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr std::int32_t kRanks = 2;

void check(tilewise_status status) {
  if (status == TILEWISE_OK) return;
  std::fprintf(stderr, "%s\n", tilewise_last_error());
  std::exit(1);
}

class DeviceArray {
 public:
  DeviceArray(std::int32_t device, std::int64_t bytes) : device_(device) {
    check(cuda::allocate(device, bytes, nullptr, &data_));
    check(cuda::synchronise(device, nullptr));
  }
  ~DeviceArray() { cuda::release(device_, data_, nullptr); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  void* data() const { return data_; }

 private:
  std::int32_t device_;
  void* data_ = nullptr;
};

// Normal random numbers of bf16, repeated.
void fill(std::int32_t device, void* memory, std::int64_t bytes) {
  static const std::vector<std::uint16_t> numbers = [] {
    constexpr double kTwoPi = 6.283185307179586;
    std::vector<std::uint16_t> values(1 << 22);
    std::uint64_t state = 1;
    const auto uniform = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return (static_cast<double>(state >> 11) + 0.5) * 0x1p-53;
    };
    for (std::uint16_t& value : values) {
      const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(kTwoPi * uniform());
      value = tilewise::math::to_bfloat16(static_cast<float>(normal)).bits;
    }
    return values;
  }();
  const auto all = static_cast<std::int64_t>(numbers.size() * sizeof(numbers[0]));
  for (std::int64_t at = 0; at < bytes; at += all) {
    check(cuda::copy(device, static_cast<char*>(memory) + at, numbers.data(),
                     std::min(all, bytes - at), nullptr));
  }
}

// The tensors of some tokens on a device, packed or one sequence, and a stream.
class Shard {
 public:
  Shard(std::int32_t device, std::int64_t rows, bool packed)
      : stream(device), device_(device), rows_(rows), packed_(packed) {
    check(stream.status());
    tilewise::bench::set_rows(problem, kHeads, kKvHeads,
                              [&](std::int64_t heads) { return rows_of(heads); });
    const std::int64_t shape[] = {1, kHeads, rows};
    void* const lse = take(rows * kHeads * 4);
    problem.lse = on_device(lse, TILEWISE_FP32, packed ? 2 : 3, packed ? shape + 1 : shape);
    tilewise_executor_init(&executor);
    executor.stream = stream.stream();
  }

  // A list of int64 numbers.
  tilewise_tensor list(const std::vector<std::int64_t>& numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    void* const data = take(count * 8);
    check(cuda::copy(device_, data, numbers.data(), count * 8, nullptr));
    return on_device(data, TILEWISE_INT64, 1, &count);
  }

  void* take(std::int64_t bytes) {
    arrays_.push_back(std::make_unique<DeviceArray>(device_, bytes));
    return arrays_.back()->data();
  }

  std::int32_t device() const { return device_; }
  std::int64_t rows() const { return rows_; }

  Problem problem;
  tilewise_executor executor;
  cuda::Exchange stream;

 private:
  tilewise_tensor on_device(void* data, std::int32_t dtype, std::int32_t rank,
                            const std::int64_t* shape) const {
    tilewise_tensor tensor = tilewise_contiguous(data, dtype, rank, shape);
    tensor.device = TILEWISE_CUDA;
    tensor.device_index = device_;
    return tensor;
  }
  tilewise_tensor rows_of(std::int64_t heads) {
    const std::int64_t shape[] = {1, rows_, heads, kDim};
    void* const data = take(rows_ * heads * kDim * 2);
    fill(device_, data, rows_ * heads * kDim * 2);
    return on_device(data, TILEWISE_BF16, packed_ ? 3 : 4, packed_ ? shape + 1 : shape);
  }

  std::int32_t device_;
  std::int64_t rows_;
  bool packed_;
  std::vector<std::unique_ptr<DeviceArray>> arrays_;
};

struct Row {
  std::string name;
  std::vector<std::int64_t> starts;  // of the documents, and the end of the last one
  Schedule schedule;
  int runs;  // in a round

  std::int64_t length() const { return starts.back(); }
  bool packed() const { return starts.size() > 2; }
  double forward_flops() const {
    return 4 * tilewise::bench::causal_pairs(starts) * static_cast<double>(kHeads * kDim);
  }
};

std::vector<Row> rows() {
  std::vector<std::int64_t> starts = {0};
  for (const std::int64_t thousand : {32, 1, 2, 16, 8, 4, 1, 24, 3, 12, 2, 20, 3})
    starts.push_back(starts.back() + 1024 * thousand);
  return {{"causal-16k", {0, 16384}, Schedule::kZigzag, 20},
          {"causal-128k", {0, 131072}, Schedule::kZigzag, 2},
          {"documents-128k-zigzag", starts, Schedule::kZigzag, 8},
          {"documents-128k-balanced", starts, Schedule::kBalanced, 4}};
}

// Starts a pass of one participant: forward or backward.
using Start = std::function<tilewise_status()>;

// The plans of a participant on one device or one rank.
struct Participant {
  std::unique_ptr<Shard> shard;
  Start forward;
  Start backward;
};

Participant one_device(const Row& row) {
  Participant made;
  made.shard = std::make_unique<Shard>(0, row.length(), row.packed());
  Shard& shard = *made.shard;
  shard.problem.causal = 1;
  if (row.packed())
    shard.problem.cu_seqlens_q = shard.problem.cu_seqlens_k = shard.list(row.starts);
  const auto start_of = [&](Operation operation) {
    tilewise_plan* raw = nullptr;
    check(
        tilewise_plan_create(static_cast<std::int32_t>(operation), &shard.problem, nullptr, &raw));
    const std::shared_ptr<tilewise_plan> plan(raw, tilewise_plan_destroy);
    std::size_t bytes = 0;
    check(tilewise_plan_workspace(raw, &bytes, nullptr));
    void* const memory = shard.take(static_cast<std::int64_t>(bytes) + 1);
    return [plan, memory, bytes, &shard] {
      return tilewise_plan_run(plan.get(), &shard.problem, memory, bytes, &shard.executor);
    };
  };
  made.forward = start_of(Operation::kForward);
  made.backward = start_of(Operation::kBackward);
  return made;
}

Participant one_rank(const Row& row, std::int32_t rank, const tilewise_communicator& communicator) {
  const tilewise::bench::Division division(row.schedule, row.starts, kRanks);
  Participant made;
  made.shard = std::make_unique<Shard>(rank, division.rows(rank), row.packed());
  Shard& shard = *made.shard;
  if (row.schedule != Schedule::kBalanced) {
    shard.problem.causal = 1;
    if (row.packed())
      shard.problem.cu_seqlens_q = shard.problem.cu_seqlens_k = shard.list(row.starts);
  }
  const tilewise_distributed_options raw_options = tilewise::raw_options(division.options());
  const auto start_of = [&](Operation operation) {
    tilewise_distributed_plan* raw = nullptr;
    check(tilewise_distributed_plan_create(static_cast<std::int32_t>(operation), &shard.problem,
                                           &raw_options, &communicator, &raw));
    const std::shared_ptr<tilewise_distributed_plan> plan(raw, tilewise_distributed_plan_destroy);
    std::size_t bytes = 0;
    check(tilewise_distributed_plan_workspace(raw, &bytes, nullptr));
    void* const memory = shard.take(static_cast<std::int64_t>(bytes) + 1);
    return [plan, memory, bytes, &shard] {
      return tilewise_distributed_plan_run(plan.get(), &shard.problem, memory, bytes,
                                           &shard.executor);
    };
  };
  made.forward = start_of(Operation::kForward);
  made.backward = start_of(Operation::kBackward);
  return made;
}

// The seconds of one pass, of `runs` that participants start one after the other.
double time_of(std::vector<Participant>& participants, int runs, bool with_backward) {
  std::barrier meeting(static_cast<std::ptrdiff_t>(participants.size()));
  std::chrono::duration<double> spent{};
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < participants.size(); ++number) {
    threads.emplace_back([&, number] {
      Participant& own = participants[number];
      check(cuda::use_device(own.shard->device()));
      const auto synchronise = [&] {
        check(cuda::synchronise(own.shard->device(), own.shard->executor.stream));
        meeting.arrive_and_wait();
      };
      synchronise();
      const auto start = std::chrono::steady_clock::now();
      for (int run = 0; run < runs; ++run) {
        check(own.forward());
        if (with_backward) check(own.backward());
      }
      synchronise();
      if (number == 0) spent = std::chrono::steady_clock::now() - start;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return spent.count() / runs;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Engine {
  std::string name;
  std::function<tilewise_communicator(std::int32_t rank)> communicator;
};

void measure(const Row& row, const std::vector<Engine>& engines, int rounds, bool first) {
  std::vector<std::pair<std::string, std::vector<Participant>>> contenders;
  contenders.emplace_back("one_device", std::vector<Participant>());
  contenders.back().second.push_back(one_device(row));
  for (const Engine& engine : engines) {
    contenders.emplace_back(engine.name, std::vector<Participant>());
    for (std::int32_t rank = 0; rank < kRanks; ++rank)
      contenders.back().second.push_back(one_rank(row, rank, engine.communicator(rank)));
  }
  for (const bool with_backward : {false, true}) {
    std::vector<std::vector<double>> seconds(contenders.size());
    for (auto& contender : contenders) time_of(contender.second, 1, with_backward);
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t c = 0; c < contenders.size(); ++c)
        seconds[c].push_back(time_of(contenders[c].second, row.runs, with_backward));
    }
    const double one = median(seconds[0]);
    const double flops = (with_backward ? 3.5 : 1) * row.forward_flops();
    for (std::size_t c = 1; c < contenders.size(); ++c) {
      const double two = median(seconds[c]);
      std::printf(
          "%s  {\"row\": \"%s\", \"pass\": \"%s\", \"engine\": \"%s\", "
          "\"milliseconds\": {\"one_device\": %.4g, \"two_devices\": %.4g}, "
          "\"tflops\": {\"one_device\": %.4g, \"two_devices\": %.4g}, "
          "\"of_two_devices\": %.3f}",
          first ? "" : ",\n", row.name.c_str(), with_backward ? "forward and backward" : "forward",
          contenders[c].first.c_str(), 1e3 * one, 1e3 * two, 1e-12 * flops / one,
          1e-12 * flops / two, one / (2 * two));
      first = false;
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  std::vector<std::string> names;
  for (int a = 1; a < argc; ++a) {
    const std::string argument = argv[a];
    if (argument == "--rounds" && a + 1 < argc) {
      rounds = std::max(std::atoi(argv[++a]), 1);
    } else {
      names.push_back(argument);
    }
  }
  if (cuda::device_count() < kRanks) {
    std::fprintf(stderr, "there are %d CUDA devices, must be %d\n", cuda::device_count(), kRanks);
    return 1;
  }
  std::vector<Engine> engines;
  const std::int32_t devices[kRanks] = {0, 1};
  const tilewise::LocalGroup group{std::span<const std::int32_t>(devices)};
  engines.push_back({"threads", [&](std::int32_t rank) { return group.communicator(rank); }});
  std::unique_ptr<tilewise::NcclCommunicator> nccl[kRanks];
  try {
    const auto id = tilewise::NcclCommunicator::unique_id();
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        nccl[rank] = std::make_unique<tilewise::NcclCommunicator>(id, kRanks, rank, rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    engines.push_back({"nccl", [&](std::int32_t rank) { return nccl[rank]->communicator(); }});
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "without NCCL: %s\n", error.what());
  }
  cuda::DeviceInfo device = {};
  check(cuda::find_device(0, &device));
  std::printf(
      "{\n \"command\": \"ranks_cuda\",\n \"what\": \"bf16, H 32, Hk 8, D 128; one GPU with "
      "the whole work and two ranks; medians of %d interleaved rounds\",\n"
      " \"device\": \"%s\",\n \"rows\": [\n",
      rounds, device.name);
  bool first = true;
  for (const Row& row : rows()) {
    const bool asked =
        names.empty() || std::find(names.begin(), names.end(), row.name) != names.end();
    if (!asked) continue;
    measure(row, engines, rounds, first);
    first = false;
  }
  std::printf("\n ]\n}\n");
  return 0;
}
