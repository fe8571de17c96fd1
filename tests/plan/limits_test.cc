// Missing resources (T30): allocations that fail one after another, small stacks, fork after use.
// Running a plan allocates nothing at all.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "cuda/host/runtime.h"
#include "plan/pool.h"
#include "problem/sample.h"
#include "registry/support.h"
#include "verify/cases.h"
#include "verify/device_copy.h"

namespace {

// Allocations are counted while `counting` is set; allocation number `failing` fails.
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};
std::atomic<long> failing{-1};

bool refuse_allocation() {
  if (!counting) return false;
  const long number = allocations++;
  return failing >= 0 && number >= failing;
}

}  // namespace

// The linker redirects the library's calls to these functions (--wrap).
extern "C" {
void* __real_malloc(std::size_t bytes);
void* __real_calloc(std::size_t count, std::size_t bytes);
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);

void* __wrap_malloc(std::size_t bytes) {
  return refuse_allocation() ? nullptr : __real_malloc(bytes);
}
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  return refuse_allocation() ? nullptr : __real_calloc(count, bytes);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return refuse_allocation() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  return refuse_allocation() ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
}
}

// These are not inlined, because the compiler would see a malloc paired with a delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = refuse_allocation() ? nullptr : __real_malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return refuse_allocation() ? nullptr : __real_malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tilewise::tests {
namespace {

class Counted {
 public:
  explicit Counted(long fail_from = -1) {
    allocations = 0;
    failing = fail_from;
    counting = true;
  }
  ~Counted() { counting = false; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  static long count() { return allocations; }
};

TEST(Resources, RunningAllocatesNothing) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int i = 0; i < 16; ++i) {
    const Operation operation = kOperations[i % 2];
    const Case c = verify::random_case(operation, kDtypes[i / 2 % 4], random);
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : runnable_kernels(c)) {
      std::optional<verify::DeviceCopy> copy;
      std::optional<verify::DeviceMemory> memory;
      if (kernel->device == TILEWISE_CUDA) copy.emplace(operation, instance.request());
      const tilewise_problem& request = copy ? copy->request() : instance.request();
      plan::Options options;
      options.kernel = kernel->name;
      plan::Plan plan;
      ASSERT_EQ(plan::make_plan(operation, request, options, &plan), TILEWISE_OK)
          << problem::message();
      const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
      if (copy) memory.emplace(0, std::max<std::int64_t>(plan.workspace_bytes, 1));
      plan::RunOptions run;
      run.workspace = copy ? memory->data() : workspace.data();
      run.workspace_bytes = workspace.bytes();
      ASSERT_EQ(plan::run_plan(plan, request, run), TILEWISE_OK);  // starts the pool
      problem::Status status;
      long count;
      {
        const Counted counted;
        status = plan::run_plan(plan, request, run);
        count = Counted::count();
      }
      EXPECT_EQ(status, TILEWISE_OK);
      EXPECT_EQ(count, 0) << kernel->name << ": " << describe(c);
      if (copy) {
        EXPECT_EQ(cuda::synchronise(0, nullptr), TILEWISE_OK);
      }
    }
  }
}

TEST(Resources, EveryAllocationMayFail) {
  for (const Operation operation : kOperations) {
    Sample sample;
    ASSERT_EQ(run(operation, sample.request), TILEWISE_OK);  // the default pool exists from now on
    const std::string expected = sample.memory();
    long total;
    {
      const Counted counted;
      run(operation, sample.request);
      total = Counted::count();
    }
    ASSERT_GE(total, 1);
    for (long first = 0; first < total; ++first) {
      Sample fresh;
      const std::string before = fresh.memory();
      tilewise_status status;
      {
        const Counted counted(first);
        status = run(operation, fresh.request);
      }
      EXPECT_EQ(status, TILEWISE_NO_MEMORY) << first;
      EXPECT_NE(std::string(tilewise_last_error()).find("no memory"), std::string::npos)
          << tilewise_last_error();
      EXPECT_EQ(fresh.memory(), before);
      EXPECT_EQ(run(operation, fresh.request), TILEWISE_OK) << "the next call";
      EXPECT_EQ(fresh.memory(), expected);
    }
  }
}

TEST(Resources, PlansAndPoolsReportMissingMemory) {
  Sample sample;
  tilewise_plan* plan = nullptr;
  tilewise_pool* pool = nullptr;
  tilewise_status planned;
  tilewise_status pooled;
  {
    const Counted counted(0);
    planned = tilewise_plan_create(TILEWISE_FORWARD, &sample.request, nullptr, &plan);
    pooled = tilewise_pool_create(2, &pool);
  }
  EXPECT_EQ(planned, TILEWISE_NO_MEMORY);
  EXPECT_EQ(pooled, TILEWISE_NO_MEMORY);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(pool, nullptr);
}

// If a pool cannot start its threads, the calling thread computes everything, with the same result.
TEST(Resources, APoolWithoutThreadsStillComputes) {
  Sample expected;
  ASSERT_EQ(tilewise_forward(&expected.request, nullptr), TILEWISE_OK);
  for (long first = 0; first < 12; ++first) {
    tilewise_pool* pool = nullptr;
    ASSERT_EQ(tilewise_pool_create(4, &pool), TILEWISE_OK);
    tilewise_executor executor;
    ASSERT_EQ(tilewise_pool_executor(pool, &executor), TILEWISE_OK);
    Sample sample;
    tilewise_status status;
    {
      const Counted counted(first);
      status = tilewise_forward(&sample.request, &executor);
    }
    EXPECT_TRUE(status == TILEWISE_OK || status == TILEWISE_NO_MEMORY) << status;
    EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_OK);
    EXPECT_EQ(sample.memory(), expected.memory());
    tilewise_pool_destroy(pool);
  }
}

// ---- processes ----

// Returns the exit status of a child that runs `body` and returns its verdict; 99 if it did not
// exit.
template <class Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 99;
  return WEXITSTATUS(status);
}

TEST(Resources, AForkedChildComputesTheSameBits) {
  Sample parent;
  ASSERT_EQ(tilewise_forward(&parent.request, nullptr), TILEWISE_OK);
  const std::string expected = parent.memory();
  plan::Pool pool(4);
  const tilewise_executor executor = pool.executor();
  ASSERT_EQ(tilewise_forward(&parent.request, &executor), TILEWISE_OK);
  const int status = status_of_child([&] {
    Sample child;
    if (tilewise_forward(&child.request, nullptr) != TILEWISE_OK) return false;
    if (child.memory() != expected) return false;
    Sample again;
    if (tilewise_forward(&again.request, &executor) != TILEWISE_OK) return false;
    // The grandchild is forked after the child has threads of its own.
    const int grandchild = status_of_child([&] {
      Sample third;
      return tilewise_forward(&third.request, &executor) == TILEWISE_OK &&
             third.memory() == expected;
    });
    return grandchild == 0 && again.memory() == expected;
  });
  EXPECT_EQ(status, 0);
  ASSERT_EQ(tilewise_forward(&parent.request, &executor), TILEWISE_OK);
  EXPECT_EQ(parent.memory(), expected);
}

// Two items meet only if two threads run them.
bool two_threads_run(plan::Pool& pool) {
  struct Meeting {
    std::atomic<int> there{0};
    std::atomic<bool> met{true};
  } meeting;
  pool.parallel_for(
      2,
      [](void* context, std::int64_t) {
        Meeting& own = *static_cast<Meeting*>(context);
        ++own.there;
        for (int waited = 0; own.there < 2; ++waited) {
          if (waited == 10000) own.met = false;
          if (!own.met) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
      &meeting);
  return meeting.met;
}

TEST(Resources, AForkedChildHasThreadsOfItsOwn) {
  plan::Pool pool(2);
  ASSERT_TRUE(two_threads_run(pool));
  EXPECT_EQ(status_of_child([&] { return two_threads_run(pool); }), 0);
}

// The process forks while another thread is inside the library.
TEST(Resources, AForkDuringUseLeavesTheChildUsable) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      Sample sample;
      tilewise_forward(&sample.request, nullptr);
    }
  });
  int worst = 0;
  for (int i = 0; i < 20; ++i) {
    const int status = status_of_child([] {
      alarm(20);  // a child that hangs is killed, which counts as a failure
      Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, 1, 1, 1, 1, 1});
      float numbers[8] = {};
      tilewise_problem request;
      tilewise_problem_init(&request);
      const std::int64_t shape[] = {c.batch, 1, 1, 1};
      request.q = request.k = request.v = tilewise_contiguous(numbers, TILEWISE_FP32, 4, shape);
      request.out = tilewise_contiguous(numbers + 4, TILEWISE_FP32, 4, shape);
      return tilewise_forward(&request, nullptr) == TILEWISE_OK;
    });
    worst = std::max(worst, status);
  }
  stop = true;
  busy.join();
  EXPECT_EQ(worst, 0);
}

constexpr const char* kSmallStack = "TILEWISE_TEST_SMALL_STACK";
#if defined(__SANITIZE_ADDRESS__)
// The sanitizer gives every value of an inlined kernel its own memory between guards: 250 KB for
// the one on the matrix unit, whose stack frame otherwise has 3 KB.
constexpr rlim_t kStackBytes = 1024 * 1024;
#else
constexpr rlim_t kStackBytes = 256 * 1024;
#endif

// Runs this program again with a small stack, which its threads inherit.
TEST(Resources, KernelsRunOnASmallStack) {
  if (std::getenv(kSmallStack) != nullptr) {
    for (const Operation operation : kOperations) {
      for (const std::int32_t dtype : kDtypes) {
        Case c = make_case(operation, dtype, {2, 90, 300, 4, 2, 128});
        c.causal = true;
        c.bias = {true, 4, {false, true, true, true}};
        c.dropout_p = 0.1;
        Instance instance(c);
        give_forward_results(instance);
        plan::Pool pool(4);
        const tilewise_executor executor = pool.executor();
        for (const Kernel* kernel : runnable_kernels(operation, dtype)) {
          run_for_bits(kernel->name, instance, {&executor});
        }
      }
    }
    return;
  }
  const int status = status_of_child([] {
    const rlimit limit = {kStackBytes, kStackBytes};
    if (setrlimit(RLIMIT_STACK, &limit) != 0) return false;
    setenv(kSmallStack, "1", 1);
    execl("/proc/self/exe", "limits_test", "--gtest_filter=Resources.KernelsRunOnASmallStack",
          static_cast<char*>(nullptr));
    return false;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tilewise::tests
