#include "cuda/emulation/barriers.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/machine.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint64_t kMagic = 0xB0A771E4B0A771E4u;  // the contents of an mbarrier
constexpr std::uint32_t kBarrierBytes = 8;
constexpr std::uint32_t kMaxArrivals = (1u << 20) - 1;
constexpr std::int64_t kMaxBytes = (1 << 20) - 1;
constexpr int kRegisters = 65536;   // of a multiprocessor
constexpr int kMaxRegisters = 256;  // of a thread

}  // namespace

void Barriers::begin(int threads) {
  barriers_.clear();
  for (Named& named : named_) named = {};
  known_ = {};
  // As with __launch_bounds__(threads, 1).
  registers_.assign(static_cast<std::size_t>(threads),
                    std::min(kRegisters / threads / 8 * 8, kMaxRegisters));
  free_registers_ = 0;
}

void Barriers::init(std::uint32_t address, std::uint32_t arrivals) {
  if (arrivals < 1 || arrivals > kMaxArrivals) fail("mbarrier.init: %u arrivals", arrivals);
  std::memcpy(from_shared(address, kBarrierBytes, "mbarrier.init"), &kMagic, kBarrierBytes);
  barriers_.insert_or_assign(address, MBarrier{arrivals, arrivals});
}

void Barriers::invalidate(std::uint32_t address) {
  at(address, "mbarrier.inval");
  barriers_.erase(address);
}

Barriers::MBarrier& Barriers::at(std::uint32_t address, const char* what) {
  const auto found = barriers_.find(address);
  if (found == barriers_.end()) fail("%s: there is no mbarrier at address %u", what, address);
  if (std::memcmp(from_shared(address, kBarrierBytes, what), &kMagic, kBarrierBytes) != 0)
    fail("%s: a thread wrote to the mbarrier at address %u", what, address);
  return found->second;
}

void Barriers::fence_init() {
  for (auto& [address, barrier] : barriers_) barrier.fenced = true;
}

void Barriers::end_phase(MBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  barrier.parity ^= 1;
  learn(barrier.knowledge.passed, barrier.knowledge.arriving);
  wake(&barrier);
}

void Barriers::arrive(std::uint32_t address, std::uint32_t expected_bytes) {
  MBarrier& barrier = at(address, "mbarrier.arrive");
  if (barrier.pending == 0)
    fail("mbarrier.arrive: one more than the %u of the phase, address %u", barrier.arrivals,
         address);
  barrier.bytes += expected_bytes;
  if (barrier.bytes > kMaxBytes)
    fail("mbarrier.arrive: %lld bytes are more than it counts",
         static_cast<long long>(barrier.bytes));
  --barrier.pending;
  learn(barrier.knowledge.arriving, known());
  block().races.arrive(&barrier);
  block().shared.meet();
  end_phase(barrier);
}

void Barriers::arrive_from_cluster(std::uint32_t address) {
  MBarrier& barrier = at(address, "mbarrier.arrive");
  if (barrier.pending == 0)
    fail("mbarrier.arrive: one more than the %u of the phase, address %u", barrier.arrivals,
         address);
  --barrier.pending;
  end_phase(barrier);
}

void Barriers::wait(std::uint32_t address, std::uint32_t parity) {
  const MBarrier& barrier = at(address, "mbarrier.try_wait");
  while (barrier.parity == (parity & 1)) wait_for(&barrier, "waits for the mbarrier at", address);
  learn(known(), barrier.knowledge.passed);
  block().races.leave(&barrier);
}

void Barriers::check_copy(std::uint32_t address) {
  if (!at(address, "cp.async.bulk.tensor").fenced)
    fail("cp.async.bulk.tensor: no fence.mbarrier_init after mbarrier.init of address %u", address);
}

void Barriers::complete(std::uint32_t address, std::uint32_t bytes) {
  MBarrier& barrier = barriers_.at(address);
  barrier.bytes -= bytes;
  end_phase(barrier);
}

Barriers::Known& Barriers::known() { return known_[threadIdx.x / kWarpThreads]; }

void Barriers::learn(Known& known, const Known& more) {
  for (std::size_t name = 0; name < kNames; ++name) known[name] = std::max(known[name], more[name]);
}

void Barriers::meet() {
  for (Known& known : known_) {
    for (std::size_t name = 0; name < kNames; ++name) known[name] = named_[name].completed;
  }
}

Barriers::Named& Barriers::arrive_at(std::uint32_t name, std::uint32_t threads) {
  if (name >= kNames) fail("barrier: there is no barrier %u", name);
  if (threads == 0 || threads % kWarpThreads != 0) fail("barrier: %u threads", threads);
  Named& named = named_[name];
  if (named.arrived != 0 && named.threads != threads)
    fail("barrier %u: for %u threads, the others arrived for %u", name, threads, named.threads);
  if (known()[name] != named.completed)
    fail("barrier %u: arrives without knowing that the phase before is over", name);
  named.threads = threads;
  learn(named.knowledge.arriving, known());
  block().races.arrive(&named);
  if (++named.arrived == threads) {
    named.arrived = 0;
    ++named.completed;
    learn(named.knowledge.passed, named.knowledge.arriving);
    named.knowledge.passed[name] = named.completed;
    block().shared.meet();
    wake(&named);
  }
  return named;
}

void Barriers::named_barrier_sync(std::uint32_t name, std::uint32_t threads) {
  const std::uint64_t before = name < kNames ? named_[name].completed : 0;
  const Named& named = arrive_at(name, threads);
  while (named.completed == before) wait_for(&named, "waits at named barrier", name);
  learn(known(), named.knowledge.passed);
  block().races.leave(&named);
}

void Barriers::named_barrier_arrive(std::uint32_t name, std::uint32_t threads) {
  arrive_at(name, threads);
}

void Barriers::setmaxnreg_dec(int count) {
  int& own = registers_[threadIdx.x];
  if (count > own) fail("setmaxnreg.dec: to %d from %d registers", count, own);
  free_registers_ += own - count;
  own = count;
  wake(&free_registers_);
}

void Barriers::setmaxnreg_inc(int count) {
  int& own = registers_[threadIdx.x];
  if (count < own) fail("setmaxnreg.inc: to %d from %d registers", count, own);
  while (free_registers_ < count - own)
    wait_for(&free_registers_, "waits for registers, asks for", static_cast<std::uint32_t>(count));
  free_registers_ -= count - own;
  own = count;
}

}  // namespace tilewise::emulation
