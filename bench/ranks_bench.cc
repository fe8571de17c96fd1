// Attention on ranks of this process, one thread each, and on one device with as many threads: what
// dividing a sequence costs. ranks:0 is the one device, which has the same work and the same cores.
//
//   ranks_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <tilewise/masks.hpp>
#include <tilewise/tilewise_distributed.hpp>
#include <vector>

#include "ranks.h"

namespace {

using tilewise::DistributedOptions;
using tilewise::Problem;
using tilewise::Schedule;
using tilewise::bench::Division;
using tilewise::masks::Slices;

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDim = 128;
constexpr std::int32_t kRanks = 2;

enum class Mask { kFull, kCausal, kDocuments };

// The lengths of the documents double: 1, 1, 2, 4, ... of 32 parts of the whole.
std::vector<std::int64_t> document_starts(std::int64_t length) {
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t end = length / 32; end <= length; end *= 2) starts.push_back(end);
  return starts;
}

Slices slices_of(Mask mask, std::int64_t length) {
  if (mask != Mask::kDocuments) return {};
  return tilewise::masks::documents(document_starts(length), {.causal = true});
}

double visible_pairs(Mask mask, std::int64_t length) {
  if (mask == Mask::kFull) return static_cast<double>(length) * static_cast<double>(length);
  if (mask == Mask::kCausal) return tilewise::bench::causal_pairs({0, length});
  return tilewise::bench::causal_pairs(document_starts(length));
}

// The tensors of `rows` tokens: fp32 numbers, or the first half of their bits, which are bf16.
class Shard {
 public:
  Shard(std::int32_t dtype, std::int64_t rows, Mask mask, const Slices& slices) {
    const std::int64_t size = dtype == TILEWISE_FP32 ? 4 : 2;
    tilewise::bench::set_rows(problem, kHeads, kKvHeads, [&](std::int64_t heads) {
      storage_.emplace_back(static_cast<std::size_t>(rows * heads * kDim * size));
      fill(dtype, &storage_.back());
      const std::int64_t shape[] = {1, rows, heads, kDim};
      return tilewise_contiguous(storage_.back().data(), dtype, 4, shape);
    });
    lse_.resize(static_cast<std::size_t>(rows * kHeads));
    problem.lse = tilewise::tensor(std::span(lse_), {1, kHeads, rows});
    problem.causal = mask == Mask::kCausal ? 1 : 0;
    if (!slices.empty()) problem.slices = tilewise::masks::tensor(slices);
  }

  Problem problem;

 private:
  static void fill(std::int32_t dtype, std::vector<std::uint8_t>* bytes) {
    const std::size_t size = dtype == TILEWISE_FP32 ? 4 : 2;
    for (std::size_t i = 0; i < bytes->size() / size; ++i) {
      const float x = std::sin(static_cast<float>(i % 9973));
      std::uint8_t bits[4];
      std::memcpy(bits, &x, 4);
      std::memcpy(bytes->data() + i * size, bits + 4 - size, size);
    }
  }

  std::vector<std::vector<std::uint8_t>> storage_;
  std::vector<float> lse_;
};

// Calls rank_work(rank) on `size` threads.
template <class Function>
void on_ranks(std::int32_t size, const Function& rank_work) {
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) threads.emplace_back(rank_work, rank);
  for (std::thread& thread : threads) thread.join();
}

void set_rate(benchmark::State& state, Mask mask, std::int64_t length) {
  const double flops = 3.5 * 4 * visible_pairs(mask, length) * static_cast<double>(kHeads * kDim);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

// Forward and backward on one device, with a thread for each rank of the other rows.
void one_device(benchmark::State& state, std::int32_t dtype, Mask mask, std::int64_t length) {
  const Slices slices = slices_of(mask, length);
  Shard whole(dtype, length, mask, slices);
  const tilewise::Pool pool(kRanks);
  for (auto _ : state) {
    tilewise::forward(whole.problem, pool.executor());
    tilewise::backward(whole.problem, pool.executor());
  }
  set_rate(state, mask, length);
}

Division division_of(Mask mask, std::int64_t length, std::int32_t size) {
  if (mask == Mask::kDocuments) return {Schedule::kBalanced, document_starts(length), size};
  return {mask == Mask::kCausal ? Schedule::kZigzag : Schedule::kContiguous, {0, length}, size};
}

void ranks(benchmark::State& state, std::int32_t dtype, Mask mask, std::int64_t length) {
  const auto size = static_cast<std::int32_t>(state.range(0));
  if (size == 0) return one_device(state, dtype, mask, length);
  const Division division = division_of(mask, length, size);
  DistributedOptions options = division.options();
  options.kernels.max_concurrency = 1;
  std::vector<Shard> shards;
  for (std::int32_t rank = 0; rank < size; ++rank)
    shards.emplace_back(dtype, division.rows(rank), mask, Slices());
  const tilewise::LocalGroup group(size);
  const tilewise::Pool single(1);  // a rank computes on its own thread
  for (auto _ : state) {
    on_ranks(size, [&](std::int32_t rank) {
      const Problem& problem = shards[static_cast<std::size_t>(rank)].problem;
      tilewise::forward(problem, options, group.communicator(rank), single.executor());
      tilewise::backward(problem, options, group.communicator(rank), single.executor());
    });
  }
  set_rate(state, mask, length);
}

void register_all() {
  const struct {
    const char* name;
    Mask mask;
  } masks[] = {{"full", Mask::kFull}, {"causal", Mask::kCausal}, {"documents", Mask::kDocuments}};
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    for (const auto& mask : masks) {
      for (const std::int64_t length : {2048, 8192}) {
        const std::string name = std::string(dtype == TILEWISE_FP32 ? "fp32/" : "bf16/") +
                                 mask.name + "/S" + std::to_string(length) + "/ranks";
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { ranks(state, dtype, mask.mask, length); })
            ->Arg(0)
            ->Arg(kRanks)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

const int registered = (register_all(), 0);

}  // namespace
