#include "plan/pool.h"

#include <pthread.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "plan/thread_count.h"

namespace tilewise::plan {
namespace {

// One parallel_for. It lives on the stack of the caller, which therefore returns only when no
// worker uses it any more.
struct Job {
  void (*fn)(void*, std::int64_t);
  void* context;
  std::int64_t n;
  std::fenv_t environment;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int32_t> users{0};  // workers inside; changed under the crew's mutex
  Job* link = nullptr;

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= n; }
  void work() {
    for (std::int64_t item = next.fetch_add(1); item < n; item = next.fetch_add(1))
      fn(context, item);
  }
};

thread_local bool inside_item = false;

// Waking a sleeping thread takes longer than many a problem, so idle threads wait actively this
// long for the next job before they sleep.
constexpr std::chrono::microseconds kSpin{50};

template <class Condition>
void spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < end);
}

// Forks are counted, and no fork happens while a crew is being created: the child finds the mutex
// free and its crew gone.
std::mutex start_mutex;
std::uint64_t fork_count = 0;

// This is registered when the library is loaded: the guard of a function-local static could itself
// be interrupted by a fork.
[[maybe_unused]] const int forks_are_watched =
    pthread_atfork([] { start_mutex.lock(); }, [] { start_mutex.unlock(); },
                   [] {
                     ++fork_count;
                     inside_item = false;
                     start_mutex.unlock();
                   });

}  // namespace

struct Pool::Crew {
  std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable worker_left;
  Job* jobs = nullptr;  // the jobs that may still have work items
  bool closing = false;
  std::atomic<std::uint64_t> arrivals = 0;  // of jobs, and of the end
  std::vector<std::thread> workers;

  Job* open_job() const {
    for (Job* job = jobs; job != nullptr; job = job->link) {
      if (!job->exhausted()) return job;
    }
    return nullptr;
  }

  void serve() {
    inside_item = true;
    std::unique_lock lock(mutex);
    while (true) {
      Job* job = open_job();
      if (job == nullptr && !closing) {
        const std::uint64_t seen = arrivals.load(std::memory_order_relaxed);
        lock.unlock();
        spin_until([&] { return arrivals.load(std::memory_order_relaxed) != seen; });
        lock.lock();
        work_arrived.wait(lock, [&] { return closing || (job = open_job()) != nullptr; });
      }
      if (job == nullptr) return;
      ++job->users;
      lock.unlock();
      std::fesetenv(&job->environment);
      job->work();
      lock.lock();
      if (--job->users == 0) worker_left.notify_all();
    }
  }

  void add(Job* job) {
    const std::lock_guard lock(mutex);
    job->link = jobs;
    jobs = job;
    arrivals.fetch_add(1, std::memory_order_relaxed);
  }

  void remove_and_wait(Job* job) {
    std::unique_lock lock(mutex);
    Job** place = &jobs;
    while (*place != job) place = &(*place)->link;
    *place = job->link;
    lock.unlock();
    spin_until([&] { return job->users.load(std::memory_order_relaxed) == 0; });
    lock.lock();
    worker_left.wait(lock, [&] { return job->users == 0; });
  }
};

Pool::Crew* Pool::crew() {
  const std::lock_guard lock(start_mutex);
  if (crew_ != nullptr && generation_ == fork_count) return crew_;
  // After a fork the old crew has no threads, and its mutex may be held by one that is gone. It is
  // leaked, not destroyed.
  crew_ = new (std::nothrow) Crew;
  generation_ = fork_count;
  if (crew_ == nullptr) return nullptr;
  try {
    crew_->workers.reserve(static_cast<std::size_t>(threads_ - 1));
    Crew* crew = crew_;
    for (std::int32_t i = 1; i < threads_; ++i)
      crew->workers.emplace_back([crew] { crew->serve(); });
  } catch (const std::system_error&) {  // the pool runs with those that could be started
  } catch (const std::bad_alloc&) {
  }
  return crew_;
}

Pool::~Pool() {
  const std::lock_guard lock(start_mutex);
  if (crew_ == nullptr || generation_ != fork_count) return;
  {
    const std::lock_guard crew_lock(crew_->mutex);
    crew_->closing = true;
    crew_->arrivals.fetch_add(1, std::memory_order_relaxed);
  }
  crew_->work_arrived.notify_all();
  for (std::thread& worker : crew_->workers) worker.join();
  delete crew_;
}

void Pool::parallel_for(std::int64_t n, void (*fn)(void*, std::int64_t), void* context) {
  Crew* const hired = n > 1 && threads_ > 1 && !inside_item ? crew() : nullptr;
  if (hired == nullptr) {
    for (std::int64_t item = 0; item < n; ++item) fn(context, item);
    return;
  }
  Job job;
  job.fn = fn;
  job.context = context;
  job.n = n;
  std::fegetenv(&job.environment);
  hired->add(&job);
  hired->work_arrived.notify_all();
  inside_item = true;
  job.work();
  inside_item = false;
  hired->remove_and_wait(&job);
}

tilewise_executor Pool::executor() {
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.max_concurrency = threads_;
  executor.self = this;
  executor.parallel_for = [](void* self, std::int64_t n, void (*fn)(void*, std::int64_t),
                             void* context) {
    static_cast<Pool*>(self)->parallel_for(n, fn, context);
  };
  return executor;
}

Pool* default_pool() {
  static std::atomic<Pool*> pool = nullptr;
  if (Pool* const made = pool.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(start_mutex);  // not a guarded static: see forks_are_watched
  ThreadCount count;
  read_thread_count(&count);  // make_plan() reports a failure
  if (pool.load() == nullptr) pool.store(new (std::nothrow) Pool(count.threads));
  return pool.load();
}

}  // namespace tilewise::plan
