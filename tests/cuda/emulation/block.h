// Runs a block of CUDA threads on one thread of the CPU. Each of them is a fiber that runs until it
// must wait for others, in a collective of its warp or at a barrier of the block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tilewise::emulation {

inline constexpr int kWarpThreads = 32;
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kMaxThreads = 1024;   // of a block

// The arguments of the lanes of a warp to a collective, and the addresses of its results. nullptr
// if the lane does not participate.
using Requests = std::array<void*, kWarpThreads>;
using Perform = void (*)(const Requests& requests);
using GroupRequests = std::array<void*, kGroupThreads>;
using PerformGroup = void (*)(const GroupRequests& requests);

// ---- for device code, called by the running thread ----

// Waits for all lanes of the mask, which must call the same collective. The last one performs it.
void meet_warp(std::uint32_t mask, Perform perform, void* request);

// The memory accesses of the lanes of the mask before it come before those after it (races.h).
// Called by the lane that performs a collective.
void order_warp(std::uint32_t mask);

// A collective of all threads of a warpgroup.
void meet_warpgroup(PerformGroup perform, void* request);

// Waits for all threads of the block, of which none may have returned. Returns whether `value` was
// true in one of them.
bool meet_block(bool value);

// Lets other blocks run. Called where this block reads what they have written.
void meet_blocks();

// Fails the block, and with it the launch. Does not return.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// griddepcontrol.wait. Each thread of a kernel started by launch_early() must call it before it
// accesses global memory.
void wait_for_dependency();

// Fails if the thread has not called wait_for_dependency(). `what` is the instruction that needs
// it.
void check_waited_for_dependency(const char* what);

// The value of every byte of shared memory that has not been written.
int poison();

// The block's dynamic shared memory, which begins full of poison().
unsigned char* shared_memory();

// The address of a byte of it in instructions (shared_memory.h).
std::uint32_t to_shared(const void* pointer);

// The bytes at an address, which must be aligned to their number. `what` is the instruction.
unsigned char* from_shared(std::uint32_t address, std::uint32_t bytes, const char* what);

// ---- for launches ----

struct Launch {
  std::int64_t blocks;
  int threads;
  std::size_t shared_bytes;
  void (*function)(void* argument);  // that each thread runs
  void* argument;
  bool early = false;  // launched with PDL: may begin before the previous kernel has ended
  int cluster = 1;     // blocks that run at the same time: 1 or 2
};

// The number of blocks that run at the same time if they wait for each other: one for each
// multiprocessor.
inline constexpr int kMultiprocessors = 4;

// Runs the blocks one after the other, unless they wait for others. Returns what was wrong, or an
// empty string.
std::string run(const Launch& launch);

}  // namespace tilewise::emulation
