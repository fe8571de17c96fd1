// One call's arguments as a tilewise_problem.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

#include <array>

#include "array.h"

namespace tilewise::python {

// A problem and what keeps its arrays. Filled argument by argument; a failure is an exception.
class Call {
 public:
  // The stream of CUDA arrays, as a number; 0 is the default stream.
  explicit Call(std::uintptr_t stream) : stream_(stream) { tilewise_problem_init(&problem_); }
  Call(const Call&) = delete;

  // Starts from the options of another call; its tensors are left out.
  Call(const tilewise_problem& options, std::uintptr_t stream);

  // None leaves the tensor absent.
  void set_tensor(tilewise_tensor tilewise_problem::*field, const char* name,
                  nanobind::handle value, Access access);

  // {name: value} of everything in tilewise.Options; None stands for the default. `caller` is the
  // function that an unknown name is reported for.
  void set_options(const char* caller, const nanobind::dict& options);

  const tilewise_problem& problem() const { return problem_; }
  std::uintptr_t stream() const { return stream_; }

 private:
  void set_option(const char* caller, const char* name, nanobind::handle value);

  tilewise_problem problem_;
  std::uintptr_t stream_;
  std::array<nanobind::object, 24> owners_;  // of the arrays; a problem has 20
  std::size_t owned_ = 0;
};

// The text of a str, which lives as long as that; TypeError for anything else. `name` is what
// messages call it.
const char* text_of(const char* name, nanobind::handle value);

// The number of a stream: None, a number, or what has `cuda_stream` (PyTorch), `ptr` (CuPy) or
// __cuda_stream__.
std::uintptr_t stream_number(nanobind::handle stream);

// How the work is spread: on the default pool, on `threads` threads, or on a stream.
class Executor {
 public:
  Executor(nanobind::handle threads, std::uintptr_t stream);
  const tilewise_executor* get() const { return given_ ? &executor_ : nullptr; }
  std::int32_t max_concurrency() const { return given_ ? executor_.max_concurrency : 0; }

 private:
  tilewise_executor executor_;
  bool given_ = false;
};

}  // namespace tilewise::python
