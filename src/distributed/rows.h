// Loops over the rows of tensors: filling, copying, adding and rounding.
#pragma once

#include "problem/kernel.h"
#include "problem/problem.h"

namespace tilewise::distributed {

// The sizes of a tensor that a problem::View addresses.
struct Extents {
  std::int64_t batch;  // 1 if the tensor is packed
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t width;
};

// The means of computing: the threads of an executor or, for tensors of a device, its kernels,
// which are started on the executor's stream. After an error nothing more is started.
class Worker {
 public:
  Worker(const problem::Problem& problem, const tilewise_executor& executor)
      : executor_(executor), device_(problem.device), device_index_(problem.device_index) {}

  const tilewise_executor& executor() const { return executor_; }
  bool on_device() const { return device_ == TILEWISE_CUDA; }
  std::int32_t device_index() const { return device_index_; }
  void* stream() const { return executor_.stream; }

  problem::Status status() const {
    return status_;
  }  // the first error, whose message is the
     // thread's
  template <class Start>
  void start(const Start& start) {
    if (status_ == TILEWISE_OK) status_ = start();
  }

 private:
  const tilewise_executor& executor_;
  std::int32_t device_;
  std::int32_t device_index_;
  problem::Status status_ = TILEWISE_OK;
};

// Sets every element to `value`; fp64 and fp32 only.
void fill_rows(const problem::View& view, const Extents& extents, double value, Worker& worker);

// Copies every element, with rounding to nearest even if the dtypes differ. `from` is fp64 or fp32,
// or has the dtype of `to`.
void copy_rows(const problem::View& from, const problem::View& to, const Extents& extents,
               Worker& worker);

// to += from, both fp64 or both fp32.
void add_rows(const problem::View& from, const problem::View& to, const Extents& extents,
              Worker& worker);

}  // namespace tilewise::distributed
