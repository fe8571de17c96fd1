// A copy of a request on a device: the same tensors, byte for byte, in device memory between
// guards.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// Device memory. Throws std::runtime_error if there is none.
class DeviceMemory {
 public:
  // The memory is filled with 0xFF.
  DeviceMemory(std::int32_t device, std::int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::int32_t device_;
  std::byte* data_ = nullptr;
};

// A contiguous piece of a region.
struct Piece {
  std::int64_t offset;
  std::int64_t bytes;
};

// Tensors that interleave stay interleaved. `request` must outlive this object.
class DeviceCopy {
 public:
  DeviceCopy(problem::Operation operation, const tilewise_problem& request,
             std::int32_t device = 0);

  const tilewise_problem& request() const { return twin_; }

  // Copies the tensors of the request, as they are now, to the device again.
  void send();

  // Copies the outputs, with everything that shares their memory, back to the request. Inputs are
  // not copied back, since they may lie in memory that cannot be written. Returns "", or a
  // description of what was written outside of tensors.
  std::string fetch();

  // Returns whether inputs that share no memory with outputs are unchanged.
  bool inputs_are_intact() const;

 private:
  struct Region {
    bool written;  // true if the region holds an output
    std::byte* host;
    std::int64_t bytes;
    DeviceMemory memory;
    std::byte* first;           // start of the data in it, aligned to elements as the original is
    std::vector<Piece> pieces;  // the pieces that are copied
  };

  std::int32_t device_;
  std::vector<Region> regions_;
  tilewise_problem twin_;
};

// Plans `options` for the request and runs it once on a workspace filled with `fill`. For a
// device's kernel the request is copied to the device, and the outputs are copied back; `damage`
// then says what was written outside of tensors and workspace.
struct CopiedRun {
  problem::Status status = TILEWISE_OK;
  std::string damage;
  problem::Traffic traffic;    // as counted by the run
  double predicted_bytes = 0;  // the closed form
};
CopiedRun run_on_device(problem::Operation operation, const tilewise_problem& request,
                        const plan::Options& options, int fill = 0xFF);

}  // namespace tilewise::verify
