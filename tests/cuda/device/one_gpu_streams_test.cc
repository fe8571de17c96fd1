// Streams of one GPU: runs are captured in a graph and replayed with other contents of cu_seqlens,
// follow each other, and come from several host threads with streams of their own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "cuda/device/support.h"
#include "cuda/host/runtime.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

using verify::DeviceCopy;
using verify::DeviceMemory;

constexpr const char* kKernel = "cuda_sm90";

// A request on the device, its plan, a workspace and a stream.
struct Prepared {
  explicit Prepared(const Instance& instance, const char* kernel = kKernel)
      : operation(instance.description().operation), copy(operation, instance.request()) {
    plan::Options options;
    options.kernel = kernel;
    EXPECT_EQ(plan::make_plan(operation, copy.request(), options, &plan), TILEWISE_OK);
    workspace.emplace_back(0, plan.workspace_bytes + 1);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    tilewise_executor_init(&executor);
    executor.stream = stream;
  }
  ~Prepared() { cudaStreamDestroy(stream); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  problem::Status run() { return run(copy.request()); }
  problem::Status run(const tilewise_problem& request) {
    plan::RunOptions options;
    options.workspace = workspace.front().data();
    options.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
    options.executor = &executor;
    return plan::run_plan(plan, request, options);
  }
  // Waits for the stream. Returns the outputs, which are also copied to the instance.
  std::vector<std::uint64_t> bits(const Instance& instance) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(copy.fetch(), "");
    return output_bits(operation, instance.request());
  }

  Operation operation;
  DeviceCopy copy;
  plan::Plan plan;
  std::vector<DeviceMemory> workspace;
  cudaStream_t stream = nullptr;
  tilewise_executor executor;
};

Case packed_case() {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {3, 0, 0, 4, 2, 64});
  c.q_packed = c.k_packed = true;
  c.q_lengths = c.k_lengths = {300, 12, 200};
  c.q_len = c.k_len = 512;
  c.max_lengths_known = false;
  c.causal = true;
  return c;
}

// Captures a run once, replays it with each of `contents`, and compares it with a run of its own.
void replay_with(const Case& c, const std::vector<std::vector<std::int32_t>>& contents,
                 const char* kernel = kKernel) {
  Instance instance(c);
  give_forward_results(instance);
  Prepared prepared(instance, kernel);
  ASSERT_EQ(cudaStreamBeginCapture(prepared.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(prepared.run(), TILEWISE_OK);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(prepared.stream, &graph), cudaSuccess);
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  std::vector<std::vector<std::uint64_t>> seen;
  for (const std::vector<std::int32_t>& starts : contents) {
    for (const tilewise_tensor* list :
         {&prepared.copy.request().cu_seqlens_q, &prepared.copy.request().cu_seqlens_k}) {
      ASSERT_EQ(list->dtype, TILEWISE_INT32);
      ASSERT_EQ(cuda::copy(0, list->data, starts.data(), 4 * starts.size(), prepared.stream),
                TILEWISE_OK);
    }
    ASSERT_EQ(cudaGraphLaunch(replay, prepared.stream), cudaSuccess);
    const std::vector<std::uint64_t> replayed = prepared.bits(instance);
    ASSERT_EQ(cudaGraphLaunch(replay, prepared.stream), cudaSuccess);
    EXPECT_EQ(prepared.bits(instance), replayed);
    ASSERT_EQ(prepared.run(), TILEWISE_OK);
    EXPECT_EQ(prepared.bits(instance), replayed);
    for (const std::vector<std::uint64_t>& other : seen) EXPECT_NE(other, replayed);
    seen.push_back(replayed);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

TEST(Stream, AGraphReplaysWithOtherSequences) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  replay_with(packed_case(), {{0, 300, 312, 512}, {0, 0, 450, 500}, {0, 128, 256, 512}});
}

// Out and lse stay those of the first sequences: other inputs than a forward pass gives, but
// inputs.
TEST(Stream, AGraphReplaysBackwardWithOtherSequences) {
  if (!has_device()) GTEST_SKIP() << "no device";
  Case c = packed_case();
  c.operation = Operation::kBackward;
  Instance instance(c);
  give_forward_results(instance);
  for (const Kernel* kernel : plan::kernels(c.operation)) {
    if (kernel->device != TILEWISE_CUDA) continue;
    if (run_kernel(kernel->name, c.operation, instance.request()) == TILEWISE_UNSUPPORTED) continue;
    SCOPED_TRACE(kernel->name);
    replay_with(c, {{0, 300, 312, 512}, {0, 0, 450, 500}, {0, 128, 256, 512}}, kernel->name);
  }
}

// More than twice as many tiles of queries as blocks, then fewer tiles than blocks, then none: some
// of these runs use the work queue and others do not.
TEST(Stream, AGraphReplaysWithMoreAndLessWork) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {3, 0, 0, 32, 4, 64});
  c.q_packed = c.k_packed = true;
  c.q_lengths = c.k_lengths = {900, 12, 1088};
  c.q_len = c.k_len = 2000;
  c.max_lengths_known = false;
  c.causal = true;
  replay_with(c, {{0, 900, 912, 2000},
                  {0, 100, 130, 140},
                  {0, 1000, 1900, 2000},
                  {0, 0, 0, 0},
                  {0, 2000, 2000, 2000}});
}

// The second run reads what the first one writes, and overwrites what the first one reads. With PDL
// a block may begin before the last block of the run before has ended; it must not load yet. Tiles
// of different lengths end at different times.
TEST(Stream, ARunWaitsForTheOneBefore) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr int kTries = 20;
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{2, 1024, 1024, 16, 16, 128}, {64, 130, 130, 8, 8, 64}}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, sizes);
    c.causal = true;
    const Instance instance(c);
    Prepared prepared(instance);
    const tilewise_problem there = prepared.copy.request();
    tilewise_problem back = there;
    std::swap(back.q.data, back.out.data);
    const std::int64_t bytes = 2 * sizes[0] * sizes[1] * sizes[3] * sizes[5];
    const auto there_and_back = [&](bool waits) {
      EXPECT_EQ(cuda::copy(0, there.q.data, instance.request().q.data, bytes, prepared.stream),
                TILEWISE_OK);
      EXPECT_EQ(prepared.run(there), TILEWISE_OK);
      if (waits) {
        EXPECT_EQ(cudaStreamSynchronize(prepared.stream), cudaSuccess);
      }
      EXPECT_EQ(prepared.run(back), TILEWISE_OK);
      EXPECT_EQ(cuda::copy(0, there.out.data, there.q.data, bytes, prepared.stream), TILEWISE_OK);
      return prepared.bits(instance);
    };
    const std::vector<std::uint64_t> expected = there_and_back(true);
    for (int i = 0; i < kTries; ++i) ASSERT_EQ(there_and_back(false), expected) << "try " << i;
  }
}

TEST(Stream, ThreadsRunConcurrently) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr int kThreads = 4;
  constexpr int kRuns = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      Case c = make_case(Operation::kForward, TILEWISE_FP16, {2, 300 + 64 * t, 500, 4, 2, 128});
      c.causal = t % 2 == 0;
      const Instance instance(c);
      Prepared prepared(instance);
      ASSERT_EQ(prepared.run(), TILEWISE_OK);
      const std::vector<std::uint64_t> first = prepared.bits(instance);
      for (int run = 0; run < kRuns; ++run) {
        ASSERT_EQ(prepared.run(), TILEWISE_OK);
        ASSERT_EQ(prepared.bits(instance), first) << "thread " << t << " run " << run;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tilewise::tests
