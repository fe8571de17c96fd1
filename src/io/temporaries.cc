#include "io/temporaries.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace tilewise::io {
namespace {

enum State : int { kFree, kCreating, kListed };

struct Slot {
  std::atomic<int> state{kFree};
  pid_t process = 0;  // a forked child must not remove its parent's files
  char path[kMaxTemporaryPath] = {};
};

// The list is static and lock-free, since a signal handler may neither allocate nor lock.
Slot slots[kMaxTemporaries];
std::atomic<bool> interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "A signal handler may use lock-free atomics only.");

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ};
constexpr int kLongestWaitMilliseconds = 1000;

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) sigaddset(&set, number);
  return set;
}

// Waits while another thread is between listing a path and creating its file. That thread has
// blocked these signals, so it is never the one that waits here.
void await_creation(const Slot& slot) {
  for (int waited = 0; slot.state == kCreating && waited < kLongestWaitMilliseconds; ++waited) {
    ::poll(nullptr, 0, 1);
  }
}

extern "C" void remove_temporaries_and_end(int number) {
  const int error_number = errno;  // the interrupted code may be about to read it
  interrupted = true;
  for (Slot& slot : slots) {
    await_creation(slot);
    if (slot.state == kListed && slot.process == ::getpid()) ::unlink(slot.path);
  }
  // SA_RESETHAND has restored the default action; it takes effect when this handler returns.
  ::raise(number);
  errno = error_number;
}

// Blocks the handled signals in this thread while it lives.
class HoldSignals {
 public:
  HoldSignals() {
    const sigset_t set = handled_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~HoldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HoldSignals(const HoldSignals&) = delete;
  HoldSignals& operator=(const HoldSignals&) = delete;

 private:
  sigset_t before_ = {};
};

int claim_slot() {
  for (int index = 0; index < kMaxTemporaries; ++index) {
    int expected = kFree;
    if (slots[index].state.compare_exchange_strong(expected, kCreating)) return index;
  }
  return -1;
}

}  // namespace

void remove_temporaries_on_signal() {
  struct sigaction action = {};
  action.sa_handler = remove_temporaries_and_end;
  action.sa_mask = handled_signals();
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : kSignals) {
    struct sigaction before = {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
  }
}

void wait_if_ending() {
  while (interrupted) ::poll(nullptr, 0, -1);
}

int create_temporary(const std::string& path, const std::function<int()>& create, int& slot) {
  if (path.size() >= kMaxTemporaryPath) return errno = ENAMETOOLONG, -1;
  const HoldSignals hold;
  slot = claim_slot();
  if (slot < 0) return errno = EMFILE, -1;
  if (interrupted) slots[slot].state = kFree;  // the handler may have passed this slot already
  wait_if_ending();
  Slot& entry = slots[slot];
  std::memcpy(entry.path, path.c_str(), path.size() + 1);
  entry.process = ::getpid();
  const int descriptor = create();
  const int error_number = errno;
  entry.state = descriptor < 0 ? kFree : kListed;
  errno = error_number;
  return descriptor;
}

void forget_temporary(int slot) { slots[slot].state = kFree; }

}  // namespace tilewise::io
