#include "cuda/emulation/block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/emulation/copies.h"
#include "cuda/emulation/fiber.h"
#include "cuda_runtime.h"

uint3 threadIdx;
dim3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace tilewise::emulation {
namespace {

constexpr std::uint32_t kSharedBase = 1024;  // what the system keeps of a block's shared memory
constexpr std::size_t kGuardBytes = 1024;    // around the dynamic shared memory
constexpr int kGuard = 0xA5;
// 12 in fp32 and bf16, 2.6 in fp16: a wrong result. NaN in every format: no result, but kernels may
// take it for an input's and compute the row again.
constexpr int kGarbage = 0x41;
constexpr int kNan = 0xFF;
constexpr std::size_t kSharedAlignment = 1024;

enum class State { kReady, kAtWarp, kAtBlock, kReturned };
constexpr const char* kStateNames[] = {"is ready", "waits for its warp", "waits for the block",
                                       "has returned"};

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::kReady;
  std::uint32_t mask = 0;  // of the collective that it waits in
  Perform perform = nullptr;
  void* request = nullptr;
};

// By lanes.
struct Warp {
  std::uint32_t alive = 0;    // that have not returned
  std::uint32_t waiting = 0;  // in a collective
};

// All of a launch. There is one: launches of several host threads wait for each other.
struct Machine {
  std::mutex one_launch;
  Launch launch = {};
  std::vector<Thread> threads = std::vector<Thread>(kMostThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMostThreads / kWarpThreads);
  int running = 0;
  int waiting = 0;  // for the block
  bool any = false;
  bool result = false;  // of the last barrier
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  std::string failure;
  std::mt19937_64 random;
  bool shuffles = false;
  int poison = 0;

  Thread& thread() { return threads[static_cast<std::size_t>(running)]; }
};

Machine& machine() {
  static Machine only;
  return only;
}

// 0: threads and blocks in their order; else shuffled by it. Odd: NaN for what was not written.
// $TILEWISE_EMULATION_SEED.
std::uint64_t order_seed() {
  const char* const given = std::getenv("TILEWISE_EMULATION_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}

// The launch fails.
void record(const std::string& what) {
  std::string& failure = machine().failure;
  if (failure.empty()) failure = what + " in block " + std::to_string(blockIdx.x);
}

// Performs the collective of the mask if all its lanes are there. From a fiber.
void complete(int first, std::uint32_t mask, Perform perform) {
  Machine& m = machine();
  Warp& warp = m.warps[static_cast<std::size_t>(first / kWarpThreads)];
  const std::uint32_t lanes = mask & warp.alive;
  if ((warp.waiting & lanes) != lanes) return;
  Thread* const threads = &m.threads[static_cast<std::size_t>(first)];
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

void resume(int number) {
  Machine& m = machine();
  m.running = number;
  threadIdx = {static_cast<unsigned>(number), 0, 0};
  Thread& thread = m.thread();
  if (!thread.fiber->resume()) return;
  thread.state = State::kReturned;
  // Those of its warp may have waited for nobody else: one of them looks again.
  const int first = number / kWarpThreads * kWarpThreads;
  m.warps[static_cast<std::size_t>(first / kWarpThreads)].alive &= ~(1u << number % kWarpThreads);
  for (int lane = 0; lane < kWarpThreads && first + lane < m.launch.threads; ++lane) {
    if (m.threads[static_cast<std::size_t>(first + lane)].state == State::kAtWarp)
      return resume(first + lane);
  }
}

void begin_block(std::int64_t number) {
  Machine& m = machine();
  blockIdx = {static_cast<unsigned>(number), 0, 0};
  std::memset(m.memory.data(), kGuard, m.memory.size());
  std::memset(m.shared, poison(), m.launch.shared_bytes);
  m.waiting = 0;
  m.any = false;
  for (Warp& warp : m.warps) warp = {};
  drop_copies();
  for (int t = 0; t < m.launch.threads; ++t) {
    Thread& thread = m.threads[static_cast<std::size_t>(t)];
    if (thread.fiber == nullptr)
      thread.fiber = std::make_unique<Fiber>(static_cast<std::size_t>(t));
    thread.fiber->begin(m.launch.body, m.launch.argument);
    thread.state = State::kReady;
    m.warps[static_cast<std::size_t>(t / kWarpThreads)].alive |= 1u << t % kWarpThreads;
  }
}

void check_end() {
  Machine& m = machine();
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  const bool intact =
      std::all_of(m.memory.data(), m.shared, is_guard) &&
      std::all_of(m.shared + m.launch.shared_bytes, m.memory.data() + m.memory.size(), is_guard);
  if (!intact) record("the block wrote beside its shared memory");
}

// No thread can go on, but some have not returned.
void report_deadlock() {
  Machine& m = machine();
  std::string states;
  const State* before = nullptr;
  for (int t = 0; t < m.launch.threads; ++t) {
    const State& state = m.threads[static_cast<std::size_t>(t)].state;
    if (before == nullptr || state != *before) {
      states += (states.empty() ? "" : ", ") + std::string("thread ") + std::to_string(t) + " " +
                kStateNames[static_cast<int>(state)];
    }
    before = &state;
  }
  record("the block cannot go on: from " + states);
}

// Runs each thread of a warp that can; whether one could.
bool run_warp(int first) {
  Machine& m = machine();
  bool ran = false;
  const int count = std::min(kWarpThreads, m.launch.threads - first);
  int order[kWarpThreads];
  std::iota(order, order + count, first);
  if (m.shuffles) std::shuffle(order, order + count, m.random);
  for (int i = 0; i < count && m.failure.empty(); ++i) {
    if (m.threads[static_cast<std::size_t>(order[i])].state != State::kReady) continue;
    resume(order[i]);
    ran = true;
  }
  return ran;
}

void run_block(std::int64_t number) {
  Machine& m = machine();
  begin_block(number);
  std::vector<int> warps;
  for (int first = 0; first < m.launch.threads; first += kWarpThreads) warps.push_back(first);
  bool ran = true;
  while (ran && m.failure.empty()) {
    if (m.shuffles) std::shuffle(warps.begin(), warps.end(), m.random);
    ran = false;
    for (const int first : warps) ran |= run_warp(first);
  }
  if (!m.failure.empty()) return;
  for (int t = 0; t < m.launch.threads; ++t) {
    if (m.threads[static_cast<std::size_t>(t)].state != State::kReturned) return report_deadlock();
  }
  check_end();
}

}  // namespace

void meet_warp(std::uint32_t mask, Perform perform, void* request) {
  Machine& m = machine();
  const int lane = m.running % kWarpThreads;
  if ((mask >> lane & 1) == 0) fail("lane %d is not in the mask of its own collective", lane);
  Thread& thread = m.thread();
  thread.state = State::kAtWarp;
  thread.mask = mask;
  thread.perform = perform;
  thread.request = request;
  m.warps[static_cast<std::size_t>(m.running / kWarpThreads)].waiting |= 1u << lane;
  while (true) {
    complete(m.running - lane, mask, perform);
    if (thread.state == State::kReady) return;
    thread.fiber->suspend();
    if (thread.state == State::kReady) return;
  }
}

bool meet_block(bool value) {
  Machine& m = machine();
  Thread& thread = m.thread();
  m.any |= value;
  thread.state = State::kAtBlock;
  if (++m.waiting < m.launch.threads) {
    thread.fiber->suspend();
    return m.result;
  }
  m.result = m.any;
  m.any = false;
  m.waiting = 0;
  for (int t = 0; t < m.launch.threads; ++t)
    m.threads[static_cast<std::size_t>(t)].state = State::kReady;
  return m.result;
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  record(std::string(text) + " (thread " + std::to_string(threadIdx.x) + ")");
  while (true) machine().thread().fiber->suspend();
}

int poison() { return machine().poison; }

unsigned char* shared_memory() { return machine().shared; }

std::uint32_t to_shared(const void* pointer) {
  const Machine& m = machine();
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(pointer) - m.shared;
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(m.launch.shared_bytes))
    fail("%p is not in dynamic shared memory", pointer);
  return kSharedBase + static_cast<std::uint32_t>(offset);
}

unsigned char* from_shared(std::uint32_t address, std::uint32_t bytes, const char* what) {
  const Machine& m = machine();
  if (address % bytes != 0) fail("%s: address %u is no multiple of %u", what, address, bytes);
  if (address < kSharedBase || address - kSharedBase + bytes > m.launch.shared_bytes)
    fail("%s: address %u is outside of shared memory", what, address);
  return m.shared + (address - kSharedBase);
}

std::string run(const Launch& launch) {
  Machine& m = machine();
  const std::lock_guard<std::mutex> alone(m.one_launch);
  m.launch = launch;
  m.failure.clear();
  m.memory.resize(launch.shared_bytes + 3 * kGuardBytes);
  void* first = m.memory.data() + kGuardBytes;
  std::size_t space = launch.shared_bytes + 2 * kGuardBytes;
  m.shared = static_cast<unsigned char*>(
      std::align(kSharedAlignment, launch.shared_bytes + kGuardBytes, first, space));
  const std::uint64_t seed = order_seed();
  m.shuffles = seed != 0;
  m.random.seed(seed);
  m.poison = seed % 2 == 0 ? kGarbage : kNan;
  blockDim = {static_cast<unsigned>(launch.threads), 1, 1};
  gridDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(launch.blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  if (m.shuffles) std::shuffle(blocks.begin(), blocks.end(), m.random);
  for (const std::int64_t block : blocks) {
    run_block(block);
    if (!m.failure.empty()) break;
  }
  return m.failure;
}

}  // namespace tilewise::emulation
