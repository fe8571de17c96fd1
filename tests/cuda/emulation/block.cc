// The threads of a block run one at a time, each until it must wait for others.
#include "cuda/emulation/block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "cuda/emulation/machine.h"

uint3 threadIdx;
dim3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace tilewise::emulation {
namespace {

constexpr const char* kStateNames[] = {"is ready",
                                       "waits for its warp",
                                       "waits for its warpgroup",
                                       "waits for the block",
                                       "",
                                       "waits for other blocks",
                                       "has returned"};

// Performs the collective of the mask if all of its lanes have called it. Called from a fiber.
void complete(int first, std::uint32_t mask, Perform perform) {
  Block& b = block();
  Warp& warp = b.warps[static_cast<std::size_t>(first / kWarpThreads)];
  const std::uint32_t lanes = mask & warp.alive;
  if ((warp.waiting & lanes) != lanes) return;
  Thread* const threads = &b.threads[static_cast<std::size_t>(first)];
  Requests requests = {};
  for (std::size_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    if (threads[lane].mask != mask) return;
    if (threads[lane].perform != perform)
      fail("it is in another collective than lane %d of its warp", static_cast<int>(lane));
    requests[lane] = threads[lane].request;
  }
  perform(requests);
  warp.waiting &= ~lanes;
  for (std::size_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((lanes >> lane & 1) != 0) threads[lane].state = State::kReady;
  }
}

void set_running(int number) {
  machine().running = number;
  threadIdx = {static_cast<unsigned>(number), 0, 0};
}

// Suspends the running thread. The next thread of its warp that is ready runs at once, if threads
// run in the order of their numbers.
void suspend() {
  Machine& m = machine();
  Fiber& fiber = *thread().fiber;
  if (m.shuffles || !m.failure.empty()) return fiber.suspend();
  const int end =
      std::min(m.running / kWarpThreads * kWarpThreads + kWarpThreads, m.launch.threads);
  for (int t = m.running + 1; t < end; ++t) {
    Thread& next = m.running_block->threads[static_cast<std::size_t>(t)];
    if (next.state != State::kReady) continue;
    set_running(t);
    return fiber.suspend_for(*next.fiber);
  }
  fiber.suspend();
}

// Runs a thread, and those of its warp that it is suspended for.
void resume(int number) {
  Machine& m = machine();
  Block& b = block();
  set_running(number);
  m.inside = true;
  thread().fiber->resume();
  m.inside = false;
  Thread& last = thread();
  if (!last.fiber->finished()) return;
  number = m.running;
  last.state = State::kReturned;
  if (!last.dependency_done && m.failure.empty())
    record("thread " + std::to_string(number) + " ended without griddepcontrol.wait");
  // The other lanes of its warp may have waited only for this one: one of them checks again.
  const int first = number / kWarpThreads * kWarpThreads;
  b.warps[static_cast<std::size_t>(first / kWarpThreads)].alive &= ~(1u << number % kWarpThreads);
  for (int lane = 0; lane < kWarpThreads && first + lane < m.launch.threads; ++lane) {
    if (b.threads[static_cast<std::size_t>(first + lane)].state == State::kAtWarp)
      return resume(first + lane);
  }
}

void check_end() {
  Block& b = block();
  if (!b.shared.intact()) record("the block wrote outside of its shared memory");
  if (!b.tma.idle()) record("the block ended before a copy by TMA");
  b.tma.write_pending_stores();
  if (!b.wgmma.idle()) record("the block ended before a product of wgmma");
}

// Reports that no thread can go on although some have not returned.
void report_deadlock() {
  std::string states;
  std::string before;
  for (int t = 0; t < machine().launch.threads; ++t) {
    const Thread& own = block().threads[static_cast<std::size_t>(t)];
    const std::string state = own.state == State::kWaits
                                  ? std::string(own.waits) + " " + std::to_string(own.number)
                                  : kStateNames[static_cast<int>(own.state)];
    if (state != before)
      states +=
          (states.empty() ? "" : ", ") + std::string("thread ") + std::to_string(t) + " " + state;
    before = state;
  }
  record("the block cannot go on: from " + states);
}

// Runs each thread of a warp that is ready. Returns whether there was one.
bool run_warp(int first) {
  Machine& m = machine();
  bool ran = false;
  const int count = std::min(kWarpThreads, m.launch.threads - first);
  int order[kWarpThreads];
  std::iota(order, order + count, first);
  if (m.shuffles) std::shuffle(order, order + count, m.random);
  for (int i = 0; i < count && m.failure.empty(); ++i) {
    if (block().threads[static_cast<std::size_t>(order[i])].state != State::kReady) continue;
    resume(order[i]);
    if (!m.shuffles) i = m.running - first;  // it may have run later lanes
    ran = true;
  }
  return ran;
}

// Completes one asynchronous operation, which happens as late as possible. Returns whether there
// was one.
bool complete_something() {
  Machine& m = machine();
  Block& b = block();
  const bool copies_first = !m.shuffles || m.random() % 2 == 0;
  if (copies_first && b.tma.advance_one()) return true;
  return b.wgmma.complete_one() || (!copies_first && b.tma.advance_one());
}

bool all(State state) {
  const auto& threads = block().threads;
  return std::all_of(threads.begin(), threads.begin() + machine().launch.threads,
                     [state](const Thread& own) { return own.state == state; });
}

bool any(State state) {
  const auto& threads = block().threads;
  return std::any_of(threads.begin(), threads.begin() + machine().launch.threads,
                     [state](const Thread& own) { return own.state == state; });
}

}  // namespace

void record(const std::string& what) {
  std::string& failure = machine().failure;
  if (failure.empty()) failure = what + " in block " + std::to_string(blockIdx.x);
}

void wait_for(const void* object, const char* waits, std::uint32_t number) {
  Thread& own = thread();
  own.state = State::kWaits;
  own.object = object;
  own.waits = waits;
  own.number = number;
  suspend();
}

void wake(const void* object) {
  for (int t = 0; t < machine().launch.threads; ++t) {
    Thread& other = block().threads[static_cast<std::size_t>(t)];
    if (other.state == State::kWaits && other.object == object) other.state = State::kReady;
  }
}

void begin_block(Block& b, std::int64_t number) {
  Machine& m = machine();
  b.number = number;
  b.shared.begin(m.launch.shared_bytes);
  b.barriers.begin(m.launch.threads);
  b.races.begin(m.launch.threads, m.launch.shared_bytes);
  b.tma.begin();
  b.wgmma.begin();
  b.at_block = b.at_cluster = 0;
  b.knows_peer = false;
  b.any = false;
  for (int& waiting : b.at_warpgroup) waiting = 0;
  for (Warp& warp : b.warps) warp = {};
  for (CpAsyncQueue& queue : b.cp_async) queue = {};
  for (int t = 0; t < m.launch.threads; ++t) {
    Thread& own = b.threads[static_cast<std::size_t>(t)];
    if (own.fiber == nullptr) own.fiber = std::make_unique<Fiber>(static_cast<std::size_t>(t));
    own.fiber->begin(m.launch.function, m.launch.argument);
    own.state = State::kReady;
    own.dependency_done = !m.launch.early;
    b.warps[static_cast<std::size_t>(t / kWarpThreads)].alive |= 1u << t % kWarpThreads;
  }
}

Progress run_block(Block& b) {
  Machine& m = machine();
  m.block = m.running_block = &b;
  blockIdx = {static_cast<unsigned>(b.number), 0, 0};
  for (int t = 0; t < m.launch.threads; ++t) {
    Thread& own = b.threads[static_cast<std::size_t>(t)];
    if (own.state == State::kYields) own.state = State::kReady;
  }
  std::vector<int> warps;
  for (int first = 0; first < m.launch.threads; first += kWarpThreads) warps.push_back(first);
  constexpr int kLateRounds = 32;  // on average
  int late = -1;                   // the first thread of a warp that runs only when no other can
  bool ran = true;
  while (ran && m.failure.empty()) {
    if (m.shuffles) {
      std::shuffle(warps.begin(), warps.end(), m.random);
      if (m.random() % kLateRounds == 0) late = warps[0];
    }
    ran = false;
    for (const int first : warps) ran |= first != late && run_warp(first);
    if (!ran && late >= 0) ran = run_warp(late);
    if (!ran && !all(State::kReturned)) ran = complete_something();
  }
  if (!m.failure.empty()) return Progress::kDone;
  if (any(State::kYields)) return Progress::kYields;
  if (all(State::kReturned)) {
    check_end();
  } else if (b.peer != nullptr) {
    return Progress::kYields;
  } else {
    report_deadlock();
  }
  return Progress::kDone;
}

void meet_warp(std::uint32_t mask, Perform perform, void* request) {
  const int number = machine().running;
  const int lane = number % kWarpThreads;
  if ((mask >> lane & 1) == 0) fail("lane %d is not in the mask of its own collective", lane);
  Thread& own = thread();
  own.state = State::kAtWarp;
  own.mask = mask;
  own.perform = perform;
  own.request = request;
  block().warps[static_cast<std::size_t>(number / kWarpThreads)].waiting |= 1u << lane;
  while (true) {
    complete(number - lane, mask, perform);
    if (own.state == State::kReady) return;
    suspend();
    if (own.state == State::kReady) return;
  }
}

void meet_warpgroup(PerformGroup perform, void* request) {
  const int group = machine().running / kGroupThreads;
  Block& b = block();
  Thread& own = thread();
  own.state = State::kAtWarpgroup;
  own.perform_group = perform;
  own.request = request;
  if (++b.at_warpgroup[group] < kGroupThreads) return suspend();
  Thread* const threads = &b.threads[static_cast<std::size_t>(group * kGroupThreads)];
  GroupRequests requests;
  for (std::size_t t = 0; t < kGroupThreads; ++t) {
    if (threads[t].perform_group != perform)
      fail("it is in another collective than thread %d of its warpgroup", static_cast<int>(t));
    requests[t] = threads[t].request;
  }
  perform(requests);
  b.at_warpgroup[group] = 0;
  for (std::size_t t = 0; t < kGroupThreads; ++t) threads[t].state = State::kReady;
}

bool meet_block(bool value) {
  Block& b = block();
  Thread& own = thread();
  b.any |= value;
  own.state = State::kAtBlock;
  if (++b.at_block < machine().launch.threads) {
    suspend();
    return b.result;
  }
  b.result = b.any;
  b.any = false;
  b.at_block = 0;
  b.shared.meet();
  b.barriers.meet();
  b.races.meet_block();
  for (int t = 0; t < machine().launch.threads; ++t)
    b.threads[static_cast<std::size_t>(t)].state = State::kReady;
  return b.result;
}

void order_warp(std::uint32_t mask) { block().races.meet_warp(mask); }

void meet_blocks() {
  thread().state = State::kYields;
  thread().fiber->suspend();
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  record(std::string(text) + " (thread " + std::to_string(threadIdx.x) + ")");
  while (true) thread().fiber->suspend();
}

void wait_for_dependency() { thread().dependency_done = true; }

void check_waited_for_dependency(const char* what) {
  if (!thread().dependency_done) fail("%s before griddepcontrol.wait", what);
}

int poison() { return machine().poison; }

unsigned char* shared_memory() { return block().shared.data(); }

std::uint32_t to_shared(const void* pointer) { return block().shared.address_of(pointer); }

unsigned char* from_shared(std::uint32_t address, std::uint32_t bytes, const char* what) {
  return block().shared.at(address, bytes, what);
}

}  // namespace tilewise::emulation
