// Forward, backward and decoding for Google Benchmark, through the public interface. The peak of
// the machine is measured in the same run; GFLOP/s counts useful flops (docs/benchmarking.md).
#include <benchmark/benchmark.h>
#include <tilewise/tilewise.h>

#include <cmath>
#include <stdexcept>
#include <thread>
#include <tilewise/tilewise.hpp>
#include <vector>

#include "calibrate/calibrate.h"

namespace {

using tilewise::Operation;
using tilewise::Plan;
using tilewise::Problem;

struct Shape {
  std::int64_t batch, q_len, k_len, heads, kv_heads, dim;
  bool causal;
};

// The tensors of one problem in fp32.
struct Attention {
  explicit Attention(const Shape& s)
      : q(numbers(s.batch * s.q_len * s.heads * s.dim)),
        k(numbers(s.batch * s.k_len * s.kv_heads * s.dim)),
        v(k.rbegin(), k.rend()),
        dout(q.rbegin(), q.rend()),
        out(q.size()),
        lse(static_cast<std::size_t>(s.batch * s.heads * s.q_len)),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()) {
    const auto query = {s.batch, s.q_len, s.heads, s.dim};
    const auto key = {s.batch, s.k_len, s.kv_heads, s.dim};
    problem.q = tilewise::tensor(std::span(q), query);
    problem.k = tilewise::tensor(std::span(k), key);
    problem.v = tilewise::tensor(std::span(v), key);
    problem.out = tilewise::tensor(std::span(out), query);
    problem.lse = tilewise::tensor(std::span(lse), {s.batch, s.heads, s.q_len});
    problem.dout = tilewise::tensor(std::span(dout), query);
    problem.dq = tilewise::tensor(std::span(dq), query);
    problem.dk = tilewise::tensor(std::span(dk), key);
    problem.dv = tilewise::tensor(std::span(dv), key);
    problem.causal = s.causal ? 1 : 0;
  }

  static std::vector<float> numbers(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i % 9973));
    }
    return values;
  }

  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
  Problem problem;
};

double visible_pairs(const Shape& s) {
  const double q = static_cast<double>(s.q_len);
  const double k = static_cast<double>(s.k_len);
  return s.causal ? q * (k - (q - 1) / 2) : q * k;  // bottom-right alignment, Sq <= Sk
}

// Returns the peak of the best instruction set, measured once.
double peak_flops() {
  static const double peak = [] {
    std::string target;
    for (std::int32_t i = 0; target.empty() && i < tilewise_cpu_target_count(); ++i) {
      if (tilewise_cpu_target_available(i) != 0) target = tilewise_cpu_target_name(i);
    }
    const std::int32_t threads = static_cast<std::int32_t>(std::thread::hardware_concurrency());
    return tilewise::calibrate::measure_flops(target, TILEWISE_FP32, threads);
  }();
  return peak;
}

void run(benchmark::State& state, Operation operation, const Shape& shape) {
  Attention attention(shape);
  tilewise::forward(attention.problem);
  const Plan plan(operation, attention.problem);
  const tilewise::Workspace workspace = plan.make_workspace();
  for (auto _ : state) plan.run(attention.problem, workspace);
  const double forward = 4 * visible_pairs(shape) * static_cast<double>(shape.dim) *
                         static_cast<double>(shape.batch * shape.heads);
  const double flops = (operation == Operation::kForward ? 1 : 2.5) * forward;
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak GFLOP/s"] = peak_flops() * 1e-9;
  state.SetLabel(plan.kernel());
}

void add(const char* name, Operation operation, const Shape& shape) {
  benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { run(state, operation, shape); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

// The shapes of docs/benchmarking.md.
const bool registered = [] {
  add("Forward/D64/S512", Operation::kForward, {1, 512, 512, 8, 8, 64, false});
  add("Forward/D64/S2048", Operation::kForward, {1, 2048, 2048, 8, 8, 64, false});
  add("Forward/D128/S2048", Operation::kForward, {1, 2048, 2048, 8, 8, 128, false});
  add("Forward/D128/S2048/causal", Operation::kForward, {1, 2048, 2048, 8, 8, 128, true});
  add("Backward/D64/S2048", Operation::kBackward, {1, 2048, 2048, 8, 8, 64, false});
  add("Backward/D128/S2048", Operation::kBackward, {1, 2048, 2048, 8, 8, 128, false});
  add("Backward/D128/S2048/causal", Operation::kBackward, {1, 2048, 2048, 8, 8, 128, true});
  add("Decode/H32/Hk8/D128/L65536", Operation::kForward, {1, 1, 65536, 32, 8, 128, false});
  return true;
}();

}  // namespace
