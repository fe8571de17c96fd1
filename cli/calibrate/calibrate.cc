#include "calibrate/calibrate.h"

#include <tilewise/tilewise.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "calibrate/loops.h"

namespace tilewise::calibrate {
namespace amx {
extern const PeakLoops kPeakLoops;
}
namespace avx512_bf16 {
extern const PeakLoops kPeakLoops;
}
namespace avx512 {
extern const PeakLoops kPeakLoops;
}
namespace avx2 {
extern const PeakLoops kPeakLoops;
}
namespace baseline {
extern const PeakLoops kPeakLoops;
}
namespace neon {
extern const PeakLoops kPeakLoops;
}
namespace generic {
extern const PeakLoops kPeakLoops;
}

namespace {

constexpr double kRoundSeconds = 1e-3;
constexpr int kArithmeticRounds = 150;
constexpr int kReadRounds = 12;
constexpr std::int64_t kBufferBytes = std::int64_t{256} << 20;

double now_seconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

const PeakLoops& loops_of(const std::string& target) {
#if defined(__x86_64__)
  if (target == "amx") return amx::kPeakLoops;
  if (target == "avx512_bf16") return avx512_bf16::kPeakLoops;
  if (target == "avx512") return avx512::kPeakLoops;
  if (target == "avx2") return avx2::kPeakLoops;
  return baseline::kPeakLoops;
#elif defined(__aarch64__)
  (void)target;
  return neon::kPeakLoops;
#else
  (void)target;
  return generic::kPeakLoops;
#endif
}

// Returns the seconds of the fastest round of `work(thread)` on all threads at once, from the first
// start to the last end.
double fastest_round(std::int32_t threads, int rounds,
                     const std::function<void(std::int32_t)>& work) {
  std::barrier start(threads);
  std::vector<std::vector<double>> begins(static_cast<std::size_t>(threads));
  std::vector<std::vector<double>> ends(static_cast<std::size_t>(threads));
  const auto take_part = [&](std::int32_t thread) {
    const std::size_t t = static_cast<std::size_t>(thread);
    for (int round = 0; round < rounds; ++round) {
      start.arrive_and_wait();
      begins[t].push_back(now_seconds());
      work(thread);
      ends[t].push_back(now_seconds());
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int32_t t = 1; t < threads; ++t) others.emplace_back(take_part, t);
    take_part(0);
  }
  double best = HUGE_VAL;
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    double first = HUGE_VAL;
    double last = 0;
    for (std::size_t t = 0; t < begins.size(); ++t) {
      first = std::min(first, begins[t][round]);
      last = std::max(last, ends[t][round]);
    }
    best = std::min(best, last - first);
  }
  return best;
}

}  // namespace

double measure_flops(const std::string& target, std::int32_t dtype, std::int32_t threads) {
  const PeakLoops& loops = loops_of(target);
  const bool pairs = dtype == TILEWISE_BF16 && loops.bf16.run != nullptr;
  const PeakLoops::Arithmetic& loop = dtype == TILEWISE_FP64 ? loops.fp64
                                      : pairs                ? loops.bf16
                                                             : loops.fp32;
  std::vector<double> results(static_cast<std::size_t>(threads));
  std::int64_t iterations = 1000;
  const auto work = [&](std::int32_t thread) {
    results[static_cast<std::size_t>(thread)] = loop.run(iterations);
  };
  while (fastest_round(1, 1, work) < kRoundSeconds) iterations *= 2;
  const double seconds = fastest_round(threads, kArithmeticRounds, work);
  return static_cast<double>(threads) * static_cast<double>(iterations * loop.flops) / seconds;
}

double measure_read(const std::string& target, std::int32_t threads) {
  const PeakLoops& loops = loops_of(target);
  const std::vector<float> buffer(static_cast<std::size_t>(kBufferBytes) / sizeof(float));
  const std::int64_t share = kBufferBytes / threads / PeakLoops::kReadBlock * PeakLoops::kReadBlock;
  std::vector<double> results(static_cast<std::size_t>(threads));
  const auto start_of = [&](std::int32_t thread) {
    return buffer.data() + share * thread / static_cast<std::int64_t>(sizeof(float));
  };
  const double seconds = fastest_round(threads, kReadRounds, [&](std::int32_t thread) {
    results[static_cast<std::size_t>(thread)] = loops.read(start_of(thread), share);
  });
  return static_cast<double>(share * threads) / seconds;
}

}  // namespace tilewise::calibrate
