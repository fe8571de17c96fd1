#include "plan/pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
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

}  // namespace

// The threads of a pool. They start with the first parallel_for() and end with the pool, at
// tilewise_shutdown() or when the library is unloaded.
struct Crew {
  std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable worker_left;
  Job* jobs = nullptr;  // the jobs that may still have work items
  bool closing = false;
  std::atomic<std::uint64_t> arrivals = 0;  // of jobs, and of the end
  std::vector<std::thread> workers;

  // These are guarded by the start mutex, except that a call ends without it.
  std::atomic<std::int64_t> calls = 0;  // parallel_for() calls that use this crew
  Crew** owner = nullptr;               // the pool's pointer to this crew; null without pool
  Crew* next = nullptr;                 // in the list of all crews
  pid_t process = getpid();

  Job* open_job() const {
    for (Job* job = jobs; job != nullptr; job = job->link) {
      if (!job->exhausted()) return job;
    }
    return nullptr;
  }

  void serve() {
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
      // The first access to a thread-local variable may take the dynamic loader's lock, which
      // dlclose() holds while it waits for this thread. During a job nobody may call dlclose().
      inside_item = true;
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

  bool has_worker(std::thread::id id) const {
    return std::any_of(workers.begin(), workers.end(),
                       [&](const std::thread& worker) { return worker.get_id() == id; });
  }
};

namespace {

// Guards the start and the end of crews. Forks are counted, and no fork happens while a crew is
// being created: the child finds the mutex free and its crew gone.
std::mutex start_mutex;
std::uint64_t fork_count = 0;
Crew* crews = nullptr;   // of this process
bool unloading = false;  // true once no thread may start any more

// This is registered when the library is loaded: the guard of a function-local static could itself
// be interrupted by a fork.
[[maybe_unused]] const int forks_are_watched =
    pthread_atfork([] { start_mutex.lock(); }, [] { start_mutex.unlock(); },
                   [] {
                     ++fork_count;
                     crews = nullptr;
                     inside_item = false;
                     start_mutex.unlock();
                   });

// Ends the threads of a crew and frees it, unless a call still uses it. Called with the start mutex
// held, so that no further call begins.
bool stop(Crew* crew) {
  if (crew->calls.load(std::memory_order_acquire) != 0) return false;
  if (crew->process != getpid()) return false;  // a child made without the handlers of fork()
  if (crew->has_worker(std::this_thread::get_id())) return false;  // a signal handler calls exit()
  {
    const std::lock_guard lock(crew->mutex);
    crew->closing = true;
    crew->arrivals.fetch_add(1, std::memory_order_relaxed);
  }
  crew->work_arrived.notify_all();
  for (std::thread& worker : crew->workers) worker.join();
  Crew** link = &crews;
  while (*link != crew) link = &(*link)->next;
  *link = crew->next;
  if (crew->owner != nullptr) *crew->owner = nullptr;
  delete crew;
  return true;
}

bool stop_all() {
  bool all = true;
  for (Crew* crew = crews; crew != nullptr;) {
    Crew* const next = crew->next;
    all = stop(crew) && all;
    crew = next;
  }
  return all;
}

// Runs at dlclose() and at exit(). At dlclose() no call is in progress and every thread ends here,
// before its code is unmapped. At exit() other threads may be computing: their crews are left to
// the end of the process, and calls that begin later run on the calling thread alone. If the mutex
// stays taken, exit() was called in a signal handler that interrupted its owner.
[[gnu::destructor]] void stop_at_unload() {
  constexpr int kMilliseconds = 1000;
  for (int waited = 0; !start_mutex.try_lock(); ++waited) {
    if (waited == kMilliseconds) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  unloading = true;
  stop_all();
  start_mutex.unlock();
}

}  // namespace

Crew* Pool::begin_call() {
  const std::lock_guard lock(start_mutex);
  if (unloading) return nullptr;
  if (crew_ == nullptr || generation_ != fork_count) {
    // After a fork the old crew has no threads, and its mutex may be held by one that is gone. It
    // is leaked, not destroyed.
    crew_ = new (std::nothrow) Crew;
    generation_ = fork_count;
    if (crew_ == nullptr) return nullptr;
    crew_->owner = &crew_;
    crew_->next = crews;
    crews = crew_;
    try {
      crew_->workers.reserve(static_cast<std::size_t>(threads_ - 1));
      Crew* crew = crew_;
      for (std::int32_t i = 1; i < threads_; ++i)
        crew->workers.emplace_back([crew] { crew->serve(); });
    } catch (const std::system_error&) {  // the pool runs with those that could be started
    } catch (const std::bad_alloc&) {
    }
  }
  crew_->calls.fetch_add(1, std::memory_order_relaxed);
  return crew_;
}

Pool::~Pool() {
  const std::lock_guard lock(start_mutex);
  if (crew_ == nullptr || generation_ != fork_count) return;
  if (Crew* const crew = crew_; !stop(crew)) crew->owner = nullptr;
}

void Pool::parallel_for(std::int64_t n, void (*fn)(void*, std::int64_t), void* context) {
  Crew* const crew = n > 1 && threads_ > 1 && !inside_item ? begin_call() : nullptr;
  if (crew == nullptr) {
    for (std::int64_t item = 0; item < n; ++item) fn(context, item);
    return;
  }
  Job job;
  job.fn = fn;
  job.context = context;
  job.n = n;
  std::fegetenv(&job.environment);
  crew->add(&job);
  crew->work_arrived.notify_all();
  inside_item = true;
  job.work();
  inside_item = false;
  crew->remove_and_wait(&job);
  crew->calls.fetch_sub(1, std::memory_order_release);
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
  // This is no guarded static: see forks_are_watched. It is never destroyed: calls may come from
  // the destructors of a program's static objects.
  static std::atomic<Pool*> pool = nullptr;
  alignas(Pool) static unsigned char memory[sizeof(Pool)];
  if (Pool* const made = pool.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(start_mutex);
  ThreadCount count;
  read_thread_count(&count);  // make_plan() reports a failure
  if (pool.load() == nullptr) pool.store(new (memory) Pool(count.threads));
  return pool.load();
}

Status stop_pools() {
  if (inside_item) {
    return problem::fail(TILEWISE_INVALID_ARGUMENT,
                         "tilewise_shutdown: called by a work item, which needs its thread");
  }
  const std::lock_guard lock(start_mutex);
  if (stop_all()) return TILEWISE_OK;
  return problem::fail(TILEWISE_INVALID_ARGUMENT,
                       "tilewise_shutdown: called while another thread computes");
}

}  // namespace tilewise::plan
