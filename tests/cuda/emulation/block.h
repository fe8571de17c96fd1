// A block of CUDA threads on one thread of the CPU: each is a fiber that runs until it meets
// others, in a collective of its warp or at a barrier of the block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tilewise::emulation {

inline constexpr int kWarpThreads = 32;
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kMostThreads = 1024;  // of a block

// What the lanes of a warp bring to a collective, and where they want its result; nullptr: the lane
// takes no part.
using Requests = std::array<void*, kWarpThreads>;
using Perform = void (*)(const Requests& requests);
using GroupRequests = std::array<void*, kGroupThreads>;
using PerformGroup = void (*)(const GroupRequests& requests);

// ---- for device code: of the thread that runs ----

// Waits for all lanes of the mask, which must come to the same collective; the last one performs.
void meet_warp(std::uint32_t mask, Perform perform, void* request);

// The same for all threads of a warpgroup.
void meet_warpgroup(PerformGroup perform, void* request);

// Waits for all threads of the block; whether `value` was true in one of them. No thread may have
// returned.
bool meet_block(bool value);

// Other blocks have their turn: where this one looks at what they have done.
void meet_blocks();

// The block fails here and now, and with it the launch; does not come back.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// griddepcontrol.wait. Each thread of a kernel that may begin early comes here, and asks for
// nothing of the device's memory before it does.
void follow_kernel_before();

// Fails where `what` comes before that.
void check_follows(const char* what);

// Every byte of memory that nobody has written yet.
int poison();

// The block's dynamic shared memory, full of poison() when it begins.
unsigned char* shared_memory();

// Its bytes as instructions address them (shared.h).
std::uint32_t to_shared(const void* pointer);

// `bytes` bytes at a multiple of themselves; `what` asks for them.
unsigned char* from_shared(std::uint32_t address, std::uint32_t bytes, const char* what);

// ---- for launches ----

struct Launch {
  std::int64_t blocks;
  int threads;
  std::size_t shared_bytes;
  void (*body)(void* argument);  // of each thread
  void* argument;
  bool early = false;  // may begin before the kernel before has ended
};

// Blocks that run at the same time where they wait for each other: one for each multiprocessor.
inline constexpr int kMultiprocessors = 4;

// Runs the blocks one after the other, as far as they do not wait for others. What was wrong; empty
// if nothing was.
std::string run(const Launch& launch);

}  // namespace tilewise::emulation
