// The arguments of one call as a tilewise_problem.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

#include <array>
#include <cstdint>

#include "array.h"

namespace tilewise::python {

// A problem, and the objects that own its arrays. It is filled argument by argument; a failure is
// an exception.
class Call {
 public:
  // `stream` is the stream of CUDA arrays, as a number; 0 is the default stream.
  explicit Call(std::uintptr_t stream) : stream_(stream) { tilewise_problem_init(&problem_); }
  Call(const Call&) = delete;

  // Starts from the options of another call, without its tensors.
  Call(const tilewise_problem& options, std::uintptr_t stream);

  // None leaves the tensor absent.
  void set_tensor(tilewise_tensor tilewise_problem::*field, const char* name,
                  nanobind::handle value, Access access);

  // Sets the options {name: value} of tilewise.Options; None means the default. An unknown name is
  // reported for the function `caller`.
  void set_options(const char* caller, const nanobind::dict& options);

  const tilewise_problem& problem() const { return problem_; }
  std::uintptr_t stream() const { return stream_; }

 private:
  void set_option(const char* caller, const char* name, nanobind::handle value);

  tilewise_problem problem_;
  std::uintptr_t stream_;
  std::array<nanobind::object, 27> owners_;  // owners of the arrays; a problem has 26
  std::size_t owned_ = 0;
};

// Returns the text of a str, which lives as long as the str; TypeError for anything else. Messages
// call it `name`.
const char* text_of(const char* name, nanobind::handle value);

// Returns an integer, of anything that has __index__; TypeError for anything else.
std::int64_t integer(const char* name, nanobind::handle value);

// Returns the number of a stream: None, a number, or an object with `cuda_stream` (PyTorch), `ptr`
// (CuPy) or __cuda_stream__.
std::uintptr_t stream_number(nanobind::handle stream);

// An executor: the default pool, a pool of `threads` threads, or a stream.
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
