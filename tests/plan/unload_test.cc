// The threads of the pools when the library is unloaded, at fork() and at exit(). The shared
// library is loaded as the host of a plugin loads it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tilewise/tilewise.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tilewise::tests {
namespace {

constexpr std::int32_t kThreads = 4;

std::int64_t threads_of_process() {
  std::int64_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    static_cast<void>(task);
    ++count;
  }
  return count;
}

// A thread that was joined may be listed for a moment longer.
bool threads_become(std::int64_t expected) {
  for (int waited = 0; threads_of_process() != expected; ++waited) {
    if (waited == 1000) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Returns whether every thread but the calling one sleeps. A thread that starts does not: it may
// hold a lock of the address sanitizer, which a child of fork() would wait for.
bool other_threads_sleep() {
  const std::string caller = std::to_string(gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string number, name;
    char state = 0;
    file >> number >> name >> state;
    if (number != caller && state != 'S') return false;
  }
  return true;
}

bool other_threads_fall_asleep() {
  for (int waited = 0; !other_threads_sleep(); ++waited) {
    if (waited == 1000) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The library, loaded anew.
class Library {
 public:
  Library() : handle_(dlopen(TILEWISE_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  ~Library() { close(); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void close() {
    if (handle_ != nullptr) dlclose(handle_);
    handle_ = nullptr;
  }
  template <class Function>
  Function* function(const char* name, Function*) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
};
#define TILEWISE_FUNCTION(library, name) (library).function(#name, &name)

// Computes a small forward pass with several heads; returns whether every row is the mean of the
// values.
bool forward_is_right(const Library& library, const tilewise_executor* executor) {
  constexpr std::int64_t kLength = 64, kHeads = 16, kDim = 16;
  const std::int64_t shape[] = {1, kLength, kHeads, kDim};
  std::vector<float> zeros(kLength * kHeads * kDim, 0.0f);
  std::vector<float> values(zeros.size(), 3.0f);
  std::vector<float> out(zeros.size(), 0.0f);
  const auto contiguous = TILEWISE_FUNCTION(library, tilewise_contiguous);
  tilewise_problem problem;
  TILEWISE_FUNCTION(library, tilewise_problem_init)(&problem);
  problem.q = contiguous(zeros.data(), TILEWISE_FP32, 4, shape);
  problem.k = problem.q;
  problem.v = contiguous(values.data(), TILEWISE_FP32, 4, shape);
  problem.out = contiguous(out.data(), TILEWISE_FP32, 4, shape);
  if (TILEWISE_FUNCTION(library, tilewise_forward)(&problem, executor) != TILEWISE_OK) return false;
  for (const float element : out) {
    if (!(std::abs(element - 3.0f) < 1e-5f)) return false;
  }
  return true;
}

// Returns a pool of kThreads threads, and its executor.
tilewise_pool* make_pool(const Library& library, tilewise_executor* executor) {
  tilewise_pool* pool = nullptr;
  TILEWISE_FUNCTION(library, tilewise_pool_create)(kThreads, &pool);
  TILEWISE_FUNCTION(library, tilewise_pool_executor)(pool, executor);
  return pool;
}

// Returns the exit status of a child that runs `body`: its verdict, or what it passes to exit();
// 128 + the signal that ended it. A child that hangs is ended by SIGALRM.
template <class Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::exit(body() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 99;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Every child sets this before it loads the library, so that the default pool has threads on a
// machine with one CPU too.
bool several_threads() { return setenv("TILEWISE_NUM_THREADS", "4", 1) == 0; }

TEST(Unload, TheThreadsOfTheDefaultPoolEndBeforeTheirCode) {
  EXPECT_EQ(status_of_child([] {
              several_threads();
              const std::int64_t before = threads_of_process();
              for (int i = 0; i < 50; ++i) {
                Library library;
                if (!forward_is_right(library, nullptr)) return false;
                if (!threads_become(before + kThreads - 1)) return false;
                library.close();
                if (!threads_become(before)) return false;
              }
              return true;
            }),
            0);
}

// The pools stay reachable, so that the leak checker reports nothing but the library's own leaks.
std::vector<tilewise_pool*>& forgotten_pools = *new std::vector<tilewise_pool*>;

TEST(Unload, TheThreadsOfAForgottenPoolEndToo) {
  EXPECT_EQ(status_of_child([] {
              const std::int64_t before = threads_of_process();
              for (int i = 0; i < 20; ++i) {
                Library library;
                tilewise_executor executor;
                forgotten_pools.push_back(make_pool(library, &executor));
                if (!forward_is_right(library, &executor)) return false;
                if (!threads_become(before + kThreads - 1)) return false;
                library.close();
                if (!threads_become(before)) return false;
              }
              return true;
            }),
            0);
}

TEST(Shutdown, EndsTheThreadsAndTheNextCallStartsThemAgain) {
  EXPECT_EQ(status_of_child([] {
              several_threads();
              const Library library;
              const auto shutdown = TILEWISE_FUNCTION(library, tilewise_shutdown);
              const std::int64_t before = threads_of_process();
              for (int i = 0; i < 20; ++i) {
                if (shutdown() != TILEWISE_OK || shutdown() != TILEWISE_OK) return false;
                if (!threads_become(before)) return false;
                if (!forward_is_right(library, nullptr)) return false;
                if (!threads_become(before + kThreads - 1)) return false;
              }
              return true;
            }),
            0);
}

TEST(Shutdown, ThreadsEndWithTheirPool) {
  EXPECT_EQ(status_of_child([] {
              const Library library;
              const std::int64_t before = threads_of_process();
              tilewise_executor executor;
              tilewise_pool* const pool = make_pool(library, &executor);
              if (!forward_is_right(library, &executor)) return false;
              if (!threads_become(before + kThreads - 1)) return false;
              TILEWISE_FUNCTION(library, tilewise_pool_destroy)(pool);
              return threads_become(before);
            }),
            0);
}

TEST(Shutdown, EndsTheThreadsOfEveryPool) {
  EXPECT_EQ(status_of_child([] {
              several_threads();
              const Library library;
              const std::int64_t before = threads_of_process();
              tilewise_executor executor;
              tilewise_pool* const pool = make_pool(library, &executor);
              if (!forward_is_right(library, &executor)) return false;
              if (!forward_is_right(library, nullptr)) return false;
              if (!threads_become(before + 2 * (kThreads - 1))) return false;
              if (TILEWISE_FUNCTION(library, tilewise_shutdown)() != TILEWISE_OK) return false;
              if (!threads_become(before)) return false;
              TILEWISE_FUNCTION(library, tilewise_pool_destroy)(pool);
              return true;
            }),
            0);
}

// The child of a fork has none of the threads, and ends without exec.
TEST(Fork, AChildThatUnloadsOrExitsDoesNotWaitForThreadsItLacks) {
  EXPECT_EQ(status_of_child([] {
              several_threads();
              Library library;
              if (!forward_is_right(library, nullptr)) return false;
              if (!other_threads_fall_asleep()) return false;
              const bool exits = status_of_child([] { return threads_become(1); }) == 0;
              const bool unloads = status_of_child([&] {
                                     library.close();
                                     return threads_become(1);
                                   }) == 0;
              const bool computes = status_of_child([&] {
                                      if (!forward_is_right(library, nullptr)) return false;
                                      library.close();
                                      return threads_become(1);
                                    }) == 0;
              return exits && unloads && computes && forward_is_right(library, nullptr);
            }),
            0);
}

TEST(Exit, WhileOtherThreadsComputeIsClean) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(status_of_child([] {
                several_threads();
                static const Library& library = *new Library;  // stays loaded
                for (int host = 0; host < 3; ++host) {
                  std::thread([] {
                    while (forward_is_right(library, nullptr)) {
                    }
                    _exit(2);
                  }).detach();
                }
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                return true;
              }),
              0);
  }
}

// A destructor of a static object runs after the library's own destructor if the library is linked
// statically, and before it otherwise.
struct ComputesWhenDestroyed {
  ~ComputesWhenDestroyed() {
    if (library != nullptr && !forward_is_right(*library, nullptr)) _exit(3);
  }
  const Library* library = nullptr;
};

TEST(Exit, StaticDestructorsMayCompute) {
  EXPECT_EQ(status_of_child([] {
              several_threads();
              static ComputesWhenDestroyed last;
              last.library = new Library;
              return forward_is_right(*last.library, nullptr);
            }),
            0);
}

}  // namespace
}  // namespace tilewise::tests
