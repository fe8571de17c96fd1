// The thread pool: every item runs once, nested calls, several callers, unusual executors. These
// tests also run under the thread sanitizer.
#include "plan/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <thread>
#include <vector>

#include "plan/thread_count.h"
#include "problem/sample.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

using plan::Pool;

template <class Function>
void run_items(Pool& pool, std::int64_t n, Function function) {
  pool.parallel_for(
      n, [](void* context, std::int64_t item) { (*static_cast<Function*>(context))(item); },
      &function);
}

TEST(Pool, EveryItemRunsOnce) {
  Pool pool(4);
  for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 100, 10000}) {
    std::vector<std::atomic<int>> counts(static_cast<std::size_t>(n));
    run_items(pool, n, [&](std::int64_t item) { ++counts[static_cast<std::size_t>(item)]; });
    for (const std::atomic<int>& count : counts) ASSERT_EQ(count, 1) << n;
  }
}

TEST(Pool, NestedCallsRunInline) {
  Pool pool(4);  // two threads stay idle
  std::atomic<int> total{0};
  std::atomic<int> elsewhere{0};
  run_items(pool, 2, [&](std::int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    run_items(pool, 20, [&](std::int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++total;
      if (std::this_thread::get_id() != self) ++elsewhere;
    });
  });
  EXPECT_EQ(total, 40);
  EXPECT_EQ(elsewhere, 0);
}

TEST(Pool, NeverMoreItemsAtOnceThanThreads) {
  constexpr int kThreads = 3;
  Pool pool(kThreads);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  run_items(pool, 300, [&](std::int64_t) {
    const int now = ++inside;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    --inside;
  });
  EXPECT_LE(most, kThreads);
  EXPECT_EQ(inside, 0);
}

TEST(Pool, ServesSeveralHostThreadsAtOnce) {
  Pool pool(3);
  std::vector<std::thread> hosts;
  std::atomic<std::int64_t> sum{0};
  for (int host = 0; host < 5; ++host) {
    hosts.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        run_items(pool, 20, [&](std::int64_t item) { sum += item; });
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(sum, 5 * 50 * 190);
}

TEST(Pool, ItemsSeeTheCallersRounding) {
  Pool pool(4);
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  std::atomic<int> wrong{0};
  run_items(pool, 64, [&](std::int64_t) {
    std::this_thread::yield();
    if (std::fegetround() != FE_UPWARD) ++wrong;
  });
  std::fesetround(before);
  EXPECT_EQ(wrong, 0);
  run_items(pool, 64, [&](std::int64_t) {
    if (std::fegetround() != before) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, MayBeDestroyedWithoutWork) {
  for (int i = 0; i < 20; ++i) Pool pool(8);
  for (int i = 0; i < 20; ++i) {
    Pool pool(4);
    run_items(pool, 4, [](std::int64_t) {});
  }
}

// While other threads compute, a shutdown is refused or comes between two of their calls; either
// way every item runs.
TEST(Pool, ShutdownDuringUseLosesNoItem) {
  Pool pool(4);
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> started{0};
  std::atomic<std::int64_t> ran{0};
  std::vector<std::thread> hosts;
  for (int host = 0; host < 3; ++host) {
    hosts.emplace_back([&] {
      while (!stop) {
        started += 8;
        run_items(pool, 8, [&](std::int64_t) { ++ran; });
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    const tilewise_status status = tilewise_shutdown();
    if (status != TILEWISE_OK) {
      EXPECT_EQ(status, TILEWISE_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(tilewise_last_error()),
                "tilewise_shutdown: called while another thread computes");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  stop = true;
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(ran, started);
  EXPECT_EQ(tilewise_shutdown(), TILEWISE_OK);
}

TEST(Pool, ShutdownFromAWorkItemIsRefused) {
  Pool pool(3);
  std::atomic<int> refused{0};
  run_items(pool, 6, [&](std::int64_t) {
    const bool fails = tilewise_shutdown() != TILEWISE_OK;
    const std::string message = tilewise_last_error();
    refused += fails && message.find("called by a work item") != std::string::npos ? 1 : 0;
  });
  EXPECT_EQ(refused, 6);
}

TEST(Pool, CountsAtLeastOneCpu) { EXPECT_GE(plan::usable_cpus(), 1); }

TEST(Pool, PublicFunctionsCheckTheirArguments) {
  tilewise_pool* pool = nullptr;
  EXPECT_EQ(tilewise_pool_create(-1, &pool), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tilewise_last_error()), "threads: is -1, must be 0 (all) to 4096");
  EXPECT_EQ(tilewise_pool_create(5000, &pool), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_pool_create(1, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(pool, nullptr);
  ASSERT_EQ(tilewise_pool_create(2, &pool), TILEWISE_OK);
  tilewise_executor executor;
  EXPECT_EQ(tilewise_pool_executor(nullptr, &executor), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_pool_executor(pool, nullptr), TILEWISE_INVALID_ARGUMENT);
  ASSERT_EQ(tilewise_pool_executor(pool, &executor), TILEWISE_OK);
  EXPECT_EQ(executor.max_concurrency, 2);
  Sample sample;
  EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_OK) << tilewise_last_error();
  tilewise_pool_destroy(pool);
  tilewise_pool_destroy(nullptr);
}

// Eight host threads share plans and the default pool, each with its own workspace and outputs (T20
// for the CPU).
TEST(Pool, ManyThreadsRunOnePlan) {
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_FP32, {2, 40, 40, 4, 2, 16});
    c.causal = true;
    Instance first(c);
    give_forward_results(first);
    for (const Kernel* kernel : host_kernels(operation)) {
      const auto expected = run_for_bits(kernel->name, first);
      plan::Options options;
      options.kernel = kernel->name;
      plan::Plan plan;
      ASSERT_EQ(plan::make_plan(operation, first.request(), options, &plan), TILEWISE_OK);
      std::atomic<int> wrong{0};
      const auto host = [&] {
        Instance own(c);
        own.set_forward_results(first.request());
        const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
        for (int repeat = 0; repeat < 3; ++repeat) {
          own.prepare(operation);
          plan::RunOptions run;
          run.workspace = workspace.data();
          run.workspace_bytes = workspace.bytes();
          if (plan::run_plan(plan, own.request(), run) != TILEWISE_OK) ++wrong;
          if (output_bits(operation, own.request()) != expected) ++wrong;
        }
      };
      std::vector<std::thread> hosts;
      for (int i = 0; i < 8; ++i) hosts.emplace_back(host);
      for (std::thread& thread : hosts) thread.join();
      EXPECT_EQ(wrong, 0) << kernel->name;
    }
  }
}

// The message of a failure belongs to the thread that failed.
TEST(Pool, MessagesAreLocalToTheThread) {
  Sample bad;
  bad.request.layout = 9;
  EXPECT_NE(tilewise_forward(&bad.request, nullptr), TILEWISE_OK);
  std::string seen = "unset";
  std::thread([&] { seen = tilewise_last_error(); }).join();
  EXPECT_EQ(seen, "");
  EXPECT_EQ(std::string(tilewise_last_error()).rfind("layout", 0), 0u);
}

}  // namespace
}  // namespace tilewise::tests
