// The speed of quantisation to fp8, and that of a copy that moves the same number of bytes. Both
// use all threads. `rate` counts the bytes that are read and written.
//
//   quantise_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tilewise/tilewise_quantise.hpp>

namespace {

constexpr std::int64_t kRows = 128 * 1024, kHeads = 8, kDim = 128;
constexpr std::int64_t kNumbers = kRows * kHeads * kDim;

struct Free {
  void operator()(std::uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::uint8_t, Free>;

// Aligned memory whose pages are there.
Memory memory_of(std::int64_t bytes) {
  void* const data = std::aligned_alloc(4096, static_cast<std::size_t>(bytes));
  std::memset(data, 0x3b, static_cast<std::size_t>(bytes));
  return Memory(static_cast<std::uint8_t*>(data));
}

// One set for all benchmarks, large enough for each.
std::uint8_t* input() {
  static const Memory memory = memory_of(4 * kNumbers);
  return memory.get();
}
std::uint8_t* output() {
  static const Memory memory = memory_of(4 * kNumbers);
  return memory.get();
}
const tilewise::Pool& pool() {
  static const tilewise::Pool all;
  return all;
}

void set_rate(benchmark::State& state, std::int64_t bytes) {
  state.counters["rate"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate,
                         benchmark::Counter::kIs1000);
}

// Copies half of the bytes that a quantisation of numbers of `width` bytes reads and writes.
void copy(benchmark::State& state, std::int64_t width) {
  const std::int64_t bytes = kNumbers * (width + 1) / 2;
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;
  const auto piece = [](void* context, std::int64_t i) {
    const std::int64_t first = i * kPiece;
    const std::int64_t all = *static_cast<const std::int64_t*>(context);
    const std::int64_t count = first + kPiece < all ? kPiece : all - first;
    std::memcpy(output() + first, input() + first, static_cast<std::size_t>(count));
  };
  input(), output();
  std::int64_t all = bytes;
  for (auto _ : state) {
    pool().executor()->parallel_for(pool().executor()->self, (bytes + kPiece - 1) / kPiece, piece,
                                    &all);
    benchmark::ClobberMemory();
  }
  set_rate(state, 2 * bytes);
}

void quantise(benchmark::State& state, std::int32_t dtype, std::int32_t format, int rank,
              bool incoherent) {
  static float scales[kHeads * kRows / 128];
  const std::int64_t shape[] = {1, kRows, kHeads, kDim};
  const std::int64_t of_scales[] = {1, kHeads, kRows / 128};
  tilewise::Quantisation task;
  task.input = tilewise_contiguous(input(), dtype, 4, shape);
  task.output = tilewise_contiguous(output(), format, 4, shape);
  task.descale = tilewise_contiguous(scales, TILEWISE_FP32, rank, of_scales);
  task.incoherent = incoherent;
  for (auto _ : state) {
    tilewise::quantise(task, pool().executor());
    benchmark::ClobberMemory();
  }
  set_rate(state, kNumbers * ((dtype == TILEWISE_FP32 ? 4 : 2) + 1));
}

const bool kRegistered = [] {
  const auto add = [](const std::string& name, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)->UseRealTime();
  };
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16, TILEWISE_FP32}) {
    const std::string name = dtype == TILEWISE_BF16   ? "bf16"
                             : dtype == TILEWISE_FP16 ? "fp16"
                                                      : "fp32";
    if (dtype != TILEWISE_FP16)
      add(name + "/copy", [=](auto& s) { copy(s, dtype == TILEWISE_FP32 ? 4 : 2); });
    for (const bool incoherent : {false, true}) {
      const std::string kind = incoherent ? "/hadamard" : "";
      add(name + "/block" + kind,
          [=](auto& s) { quantise(s, dtype, TILEWISE_E4M3, 3, incoherent); });
      add(name + "/tensor" + kind,
          [=](auto& s) { quantise(s, dtype, TILEWISE_E4M3, 1, incoherent); });
    }
  }
  return true;
}();

}  // namespace
