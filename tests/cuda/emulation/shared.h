// The shared memory of a block, as its threads see it and as the copy engine and wgmma do (the
// async proxy of PTX): what threads wrote is there only after a fence and a barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::emulation {

class SharedMemory {
 public:
  // The bytes are followed one by one in parts: how often each has changed for the async proxy.
  static constexpr std::uint32_t kPartBytes = 1024;
  struct Part {
    std::uint32_t changes = 0;
    int coming = 0;  // copies that will write to it
  };

  // A new block's, full of poison().
  void begin(std::size_t bytes);
  // Whether nobody wrote beside it.
  bool intact() const;

  unsigned char* data() { return data_; }

  // Addresses as instructions have them. The first is not 0, so that a pointer that never was one
  // is found out. From a fiber: what is wrong fails.
  std::uint32_t address_of(const void* pointer) const;
  unsigned char* at(std::uint32_t address, std::uint32_t bytes, const char* what);
  const unsigned char* async_at(std::uint32_t address, std::uint32_t bytes, const char* what);

  // A copy to [address, address + bytes) begins, and has written all of it: poison until then.
  void begin_copy(std::uint32_t address, std::uint32_t bytes);
  void end_copy(std::uint32_t address, std::uint32_t bytes);
  void write_async(std::uint32_t address, const void* from, std::uint32_t bytes);

  // Whether the async proxy sees there what threads have written, behind their fence.
  bool is_published(std::uint32_t address, std::uint32_t bytes);

  // fence.proxy.async, and a barrier that comes after it: the async proxy sees what was written.
  void fence() { fenced_ = true; }
  void meet() {
    if (fenced_) publish();
  }

  const Part& part(std::uint32_t number) const { return parts_[number]; }
  static std::uint32_t part_of(std::uint32_t address) { return (address - kBase) / kPartBytes; }

 private:
  static constexpr std::uint32_t kBase = 1024;  // what the system keeps for itself

  void check(std::uint32_t address, std::uint32_t bytes, const char* what) const;
  void publish();

  std::size_t bytes_ = 0;
  std::vector<unsigned char> memory_;  // with a guard on both sides
  unsigned char* data_ = nullptr;
  std::vector<unsigned char> async_;
  std::vector<Part> parts_;
  bool fenced_ = false;
};

}  // namespace tilewise::emulation
