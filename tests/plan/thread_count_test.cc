// The number of threads of the default pool, from the environment.
#include "plan/thread_count.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "plan/plan.h"
#include "problem/sample.h"

namespace tilewise::tests {
namespace {

// Sets both variables (nullptr: not set) and restores them at its end.
class ThreadVariables {
 public:
  ThreadVariables(const char* tilewise, const char* openmp) {
    for (int i = 0; i < 2; ++i) {
      const char* const value = std::getenv(kNames[i]);
      had_[i] = value != nullptr;
      if (had_[i]) before_[i] = value;
      set(kNames[i], i == 0 ? tilewise : openmp);
    }
  }
  ~ThreadVariables() {
    for (int i = 0; i < 2; ++i) set(kNames[i], had_[i] ? before_[i].c_str() : nullptr);
  }
  ThreadVariables(const ThreadVariables&) = delete;
  ThreadVariables& operator=(const ThreadVariables&) = delete;

 private:
  static constexpr const char* kNames[] = {"TILEWISE_NUM_THREADS", "OMP_NUM_THREADS"};
  static void set(const char* name, const char* value) {
    if (value != nullptr)
      setenv(name, value, 1);
    else
      unsetenv(name);
  }
  bool had_[2];
  std::string before_[2];
};

TEST(ThreadCount, IsThatOfTilewiseThenThatOfOpenMpThenTheUsableCpus) {
  const std::int32_t all = plan::usable_cpus();
  const struct {
    const char* tilewise;
    const char* openmp;
    std::int32_t threads;
    const char* variable;
  } cases[] = {{nullptr, nullptr, all, nullptr},
               {"", "", all, nullptr},
               {"7", nullptr, 7, "TILEWISE_NUM_THREADS"},
               {" 7 ", "3", 7, "TILEWISE_NUM_THREADS"},
               {"0", "3", all, "TILEWISE_NUM_THREADS"},
               {"4096", nullptr, 4096, "TILEWISE_NUM_THREADS"},
               {nullptr, "3", 3, "OMP_NUM_THREADS"},
               {"", "5,2,1", 5, "OMP_NUM_THREADS"},
               {nullptr, " 5 , 2", 5, "OMP_NUM_THREADS"},
               {nullptr, "0", all, nullptr},
               {nullptr, "-4", all, nullptr},
               {nullptr, "many", all, nullptr},
               {nullptr, "5x", all, nullptr},
               {nullptr, "99999999999999999999", all, nullptr}};
  for (const auto& c : cases) {
    const ThreadVariables environment(c.tilewise, c.openmp);
    plan::ThreadCount count;
    ASSERT_EQ(plan::read_thread_count(&count), TILEWISE_OK) << problem::message();
    const std::string label = std::string(c.tilewise != nullptr ? c.tilewise : "unset") + " " +
                              (c.openmp != nullptr ? c.openmp : "unset");
    EXPECT_EQ(count.threads, c.threads) << label;
    EXPECT_STREQ(count.variable, c.variable) << label;
  }
}

TEST(ThreadCount, UsableCpusAreThoseOfTheAffinity) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  std::int32_t usable = 0;
  std::thread([&] {
    if (sched_setaffinity(0, sizeof(one), &one) == 0) usable = plan::usable_cpus();
  }).join();
  EXPECT_EQ(usable, 1);
}

TEST(ThreadCount, AWrongValueFailsTheCallsThatUseTheDefaultPool) {
  for (const char* value : {"x", "-1", "4097", "3,2", "2 threads", "99999999999999999999"}) {
    const ThreadVariables environment(value, "3");
    Sample sample;
    EXPECT_EQ(tilewise_forward(&sample.request, nullptr), TILEWISE_INVALID_ARGUMENT) << value;
    EXPECT_EQ(std::string(tilewise_last_error()),
              std::string("TILEWISE_NUM_THREADS: is \"") + value + "\", must be 0 (all) to 4096");
    tilewise_executor executor;
    tilewise_executor_init(&executor);
    EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_OK) << tilewise_last_error();
  }
}

}  // namespace
}  // namespace tilewise::tests
