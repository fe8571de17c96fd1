// A communicator whose messages Python sends and receives, and NCCL in the memory of a device.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise_distributed.h>

#include <cstdint>
#include <exception>

namespace tilewise::python {

// A rank of NCCL.
class Nccl {
 public:
  // id: the bytes that one rank has from unique_id().
  Nccl(const nanobind::bytes& id, std::int32_t size, std::int32_t rank, std::int32_t device);
  ~Nccl();
  Nccl(const Nccl&) = delete;

  static nanobind::bytes unique_id();
  tilewise_communicator get() const;

 private:
  tilewise_nccl_communicator* nccl_ = nullptr;
};

// Ranks that exchange messages through a Python object with
//   exchange(sends, receives, timeout_seconds)   sends and receives: lists of (memoryview, peer,
//   tag) abort()
// exchange() returns None, or (timed out, rank, message) of the rank that failed. Both are called
// with the GIL, on the thread of a run or, with `any_thread`, on another one.
class Communicator {
 public:
  Communicator(std::int32_t rank, std::int32_t size, bool any_thread, nanobind::object engine);
  Communicator(const Communicator&) = delete;

  const tilewise_communicator& get() const { return communicator_; }

  // Lets the messages of tensors on a device go over a rank of NCCL, an Nccl, which is kept.
  void use(const nanobind::object& nccl);

  // Throws what exchange() threw in Python, if it did.
  void rethrow();

 private:
  tilewise_status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) noexcept;

  nanobind::object engine_;
  nanobind::object nccl_;
  tilewise_communicator device_ = {};  // of nccl_
  tilewise_communicator communicator_ = {};
  std::exception_ptr thrown_;
};

}  // namespace tilewise::python
