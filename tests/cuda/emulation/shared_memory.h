// The shared memory of a block, in two copies: as its threads see it, and as TMA and wgmma do (the
// async proxy of PTX). What threads write becomes visible there only after a fence and a barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::emulation {

class SharedMemory {
 public:
  // Changes for the async proxy are counted for each segment of so many bytes.
  static constexpr std::uint32_t kSegmentBytes = 1024;
  struct Segment {
    std::uint32_t changes = 0;
    int pending_copies = 0;  // that will write to it
  };

  // Begins a new block: all bytes are poison().
  void begin(std::size_t bytes);
  // Whether no thread wrote outside of it.
  bool intact() const;

  unsigned char* data() { return data_; }

  // Addresses in instructions do not begin at 0, so that a pointer that was never converted is
  // found. Called from a fiber; invalid addresses fail.
  std::uint32_t address_of(const void* pointer) const;
  unsigned char* at(std::uint32_t address, std::uint32_t bytes, const char* what);
  const unsigned char* async_at(std::uint32_t address, std::uint32_t bytes, const char* what);

  // A copy to [address, address + bytes) begins, and has written all of it. Between these there is
  // poison.
  void begin_copy(std::uint32_t address, std::uint32_t bytes);
  void end_copy(std::uint32_t address, std::uint32_t bytes);
  void write_async(std::uint32_t address, const void* from, std::uint32_t bytes);

  // Whether the async proxy sees all that threads have written there. Includes this thread's fence.
  bool is_visible_to_async_proxy(std::uint32_t address, std::uint32_t bytes);

  // fence.proxy.async, and a barrier that comes after it: the async proxy sees what was written.
  void fence() { fenced_ = true; }
  void meet() {
    if (fenced_) publish();
  }

  const Segment& segment(std::uint32_t number) const { return segments_[number]; }
  static std::uint32_t segment_of(std::uint32_t address) {
    return (address - kBase) / kSegmentBytes;
  }

 private:
  static constexpr std::uint32_t kBase = 1024;  // the system reserves the bytes before it

  void check(std::uint32_t address, std::uint32_t bytes, const char* what) const;
  void publish();

  std::size_t bytes_ = 0;
  std::vector<unsigned char> memory_;  // with a guard on both sides
  unsigned char* data_ = nullptr;
  std::vector<unsigned char> async_;
  std::vector<Segment> segments_;
  bool fenced_ = false;
};

}  // namespace tilewise::emulation
