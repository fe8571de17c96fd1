// Accesses of the threads of a block to the same bytes without a barrier between them, and vector
// accesses that are not aligned. The compiler calls access() before each access of device code that
// it compiles with -fsanitize=thread (races.cc); no other code is checked. Only what orders memory
// on a device orders accesses here: barriers and __syncwarp(), but no shuffle, vote or product.
// Static shared memory and copies by TMA are not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tilewise::emulation {

enum class Access { kRead, kWrite, kAtomic };

// The time of a thread: how often each thread of the block had passed something on to others when
// this thread last learnt of it.
using Clock = std::vector<std::uint32_t>;

// The accesses to four bytes of memory.
struct AccessedWord {
  struct Epoch {
    std::uint32_t time = 0;  // of its thread; 0: there is no access
    std::uint16_t thread = 0;
    std::uint8_t bytes = 0;  // a bit for each
    bool atomic = false;
  };
  static constexpr int kReads = 4;  // that are remembered

  std::int64_t launch = -1;
  std::int64_t block = -1;
  Epoch write;
  Epoch reads[kReads];
};

// The order of the accesses of a block. All functions but begin() are called from a fiber.
class Races {
 public:
  void begin(int threads, std::size_t shared_bytes);

  void access(const void* first, std::size_t bytes, Access access);

  void meet_block();
  void meet_warp(std::uint32_t mask);
  // At a barrier: the threads that wait for its end learn what those that arrive know.
  void arrive(const void* barrier);
  void leave(const void* barrier);

 private:
  bool knows(const AccessedWord::Epoch& other) const;
  void check(AccessedWord& word, const void* address, std::uint8_t bytes, Access access);

  std::vector<Clock> clocks_;  // of each thread
  std::map<const void*, Clock> barriers_;
  std::vector<AccessedWord> shared_;
  std::size_t next_read_ = 0;
};

// For functions of this emulation that device code calls, which the block counts as one access.
// Without instrumented code it does nothing.
void record_access(const void* first, std::size_t bytes, Access access);

}  // namespace tilewise::emulation

// Accesses of these functions are not checked.
#define TILEWISE_UNCHECKED __attribute__((noinline, no_sanitize("thread")))
