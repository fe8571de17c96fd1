// Tilewise for C++20: a header-only layer over tilewise.h with RAII, spans and exceptions. It adds
// no behaviour of its own.
//
//   tilewise::Problem problem;
//   problem.q = tilewise::tensor(std::span(q), {batch, length, heads, dim});  // and k, v, out
//   problem.causal = 1;
//   tilewise::forward(problem);  // throws tilewise::Error
#ifndef TILEWISE_TILEWISE_HPP_
#define TILEWISE_TILEWISE_HPP_

#if __cplusplus < 202002L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 202002L)
#error "tilewise.hpp needs C++20 (-std=c++20); tilewise.h works with every C++ and with C99"
#endif
#if !defined(__cpp_exceptions)
#error "tilewise.hpp reports failures as exceptions; without them use tilewise.h"
#endif

#include <tilewise/tilewise.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tilewise {

// A failed call: what() is the library's message, status() its code.
class Error : public std::runtime_error {
 public:
  Error(tilewise_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  tilewise_status status() const noexcept { return status_; }

 private:
  tilewise_status status_;
};

inline void check(tilewise_status status) {
  if (status != TILEWISE_OK) throw Error(status, tilewise_last_error());
}

inline std::string version() { return tilewise_version(); }

// Returns what this build can do on this machine, as `tilewise info` prints it.
inline std::string info() {
  std::string text(tilewise_info(nullptr, 0), '\0');
  tilewise_info(text.data(), text.size() + 1);
  return text;
}

// The dtype of an element type. bf16 and fp16 are stored as std::uint16_t, which has no dtype of
// its own: pass the dtype to tensor().
template <class T>
inline constexpr std::int32_t dtype_of = 0;
template <>
inline constexpr std::int32_t dtype_of<double> = TILEWISE_FP64;
template <>
inline constexpr std::int32_t dtype_of<float> = TILEWISE_FP32;
template <>
inline constexpr std::int32_t dtype_of<std::int32_t> = TILEWISE_INT32;
template <>
inline constexpr std::int32_t dtype_of<std::int64_t> = TILEWISE_INT64;
template <>
inline constexpr std::int32_t dtype_of<bool> = TILEWISE_BOOL;

using Tensor = tilewise_tensor;

// Returns a view of `data` with the given shape, row-major or with strides in elements. Throws
// Error for a rank that is not 1 to 4.
inline Tensor tensor(void* data, std::int32_t dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides = {}) {
  if (shape.empty() || shape.size() > TILEWISE_MAX_RANK ||
      (!strides.empty() && strides.size() != shape.size())) {
    throw Error(TILEWISE_INVALID_ARGUMENT, "tensor: " + std::to_string(shape.size()) +
                                               " dimensions and " + std::to_string(strides.size()) +
                                               " strides, must be 1 to 4 and as many or none");
  }
  Tensor view =
      tilewise_contiguous(data, dtype, static_cast<std::int32_t>(shape.size()), shape.data());
  for (std::size_t d = 0; d < strides.size(); ++d) view.strides[d] = strides[d];
  return view;
}

inline Tensor tensor(void* data, std::int32_t dtype, std::initializer_list<std::int64_t> shape,
                     std::initializer_list<std::int64_t> strides = {}) {
  return tensor(data, dtype, std::span(shape.begin(), shape.size()),
                std::span(strides.begin(), strides.size()));
}

// Returns a view of a whole span. Throws Error if the span has fewer elements than the shape.
template <class T>
Tensor tensor(std::span<T> elements, std::initializer_list<std::int64_t> shape) {
  using Element = std::remove_const_t<T>;
  static_assert(dtype_of<Element> != 0,
                "no dtype belongs to this element type: pass the pointer and the dtype");
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  std::uint64_t count = empty ? 0 : 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count) ||
        count > elements.size()) {
      throw Error(
          TILEWISE_INVALID_ARGUMENT,
          "tensor: the shape has more elements than the span's " + std::to_string(elements.size()));
    }
  }
  return tensor(const_cast<Element*>(elements.data()), dtype_of<Element>, shape);
}

using ScoreTile = tilewise_score_tile;

// Calls f(query, key, at) for every pair of a tile, in the order of memory: scores[at] and
// gradients[at] are those of the pair.
template <class Function>
void for_each_pair(const ScoreTile& tile, const Function& f) {
  if (tile.key_stride == 1) {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < tile.keys; ++c)
        f(tile.first_query + r, tile.first_key + c, r * tile.row_stride + c);
    }
  } else {
    for (std::int64_t c = 0; c < tile.keys; ++c) {
      for (std::int64_t r = 0; r < tile.rows; ++r)
        f(tile.first_query + r, tile.first_key + c, c * tile.key_stride + r);
    }
  }
}

// A score function (docs/semantics.md) from two callables:
//
//   forward(const ScoreTile& tile, T* scores)
//   backward(const ScoreTile& tile, const T* scores, T* gradients)
//
// T is float, or double for fp64 inputs, so that generic lambdas serve both. Several threads call
// them at the same time, as const objects; an exception ends the program. Without the second one
// the function is for the forward pass only. Problems that use it do not own it:
//
//   problem.score_function = function.get();
template <class Forward, class Backward = std::nullptr_t>
class ScoreFunction {
 public:
  explicit ScoreFunction(Forward forward, Backward backward = {})
      : forward_(std::move(forward)), backward_(std::move(backward)) {}
  ScoreFunction(const ScoreFunction&) = delete;
  ScoreFunction& operator=(const ScoreFunction&) = delete;

  tilewise_score_function get() const noexcept {
    tilewise_score_function function = {};
    function.forward = call_forward;
    if constexpr (!std::is_null_pointer_v<Backward>) function.backward = call_backward;
    function.user_data = const_cast<ScoreFunction*>(this);
    return function;
  }

 private:
  static void call_forward(void* self, const ScoreTile* tile, void* scores) noexcept {
    const Forward& f = static_cast<const ScoreFunction*>(self)->forward_;
    if (tile->dtype == TILEWISE_FP64) {
      f(*tile, static_cast<double*>(scores));
    } else {
      f(*tile, static_cast<float*>(scores));
    }
  }
  static void call_backward(void* self, const ScoreTile* tile, const void* scores,
                            void* gradients) noexcept {
    const Backward& f = static_cast<const ScoreFunction*>(self)->backward_;
    if (tile->dtype == TILEWISE_FP64) {
      f(*tile, static_cast<const double*>(scores), static_cast<double*>(gradients));
    } else {
      f(*tile, static_cast<const float*>(scores), static_cast<float*>(gradients));
    }
  }

  Forward forward_;
  Backward backward_;
};

// A tilewise_problem with its defaults set.
struct Problem : tilewise_problem {
  Problem() { tilewise_problem_init(this); }
};

class Pool {
 public:
  // `threads` 0 means as many as the CPU affinity and the cgroup's quota allow.
  explicit Pool(std::int32_t threads = 0) {
    tilewise_pool* pool = nullptr;
    check(tilewise_pool_create(threads, &pool));
    pool_.reset(pool);
    check(tilewise_pool_executor(pool, &executor_));
  }
  const tilewise_executor* executor() const noexcept { return &executor_; }

 private:
  struct Destroy {
    void operator()(tilewise_pool* pool) const { tilewise_pool_destroy(pool); }
  };
  std::unique_ptr<tilewise_pool, Destroy> pool_;
  tilewise_executor executor_;
};

// Ends the threads of every pool; they start again with the next use. See tilewise_shutdown().
inline void shutdown() { check(tilewise_shutdown()); }

// One call that allocates the workspace. See tilewise_forward() and tilewise_backward().
inline void forward(const Problem& problem, const tilewise_executor* executor = nullptr) {
  check(tilewise_forward(&problem, executor));
}
inline void backward(const Problem& problem, const tilewise_executor* executor = nullptr) {
  check(tilewise_backward(&problem, executor));
}

enum class Operation : std::int32_t { kForward = TILEWISE_FORWARD, kBackward = TILEWISE_BACKWARD };

// Uninitialised, aligned memory for Plan::run(). Each thread that runs a plan at the same time
// needs one of its own.
class Workspace {
 public:
  Workspace() = default;
  Workspace(std::size_t bytes, std::size_t alignment)
      : memory_(bytes > 0
                    ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                    : nullptr),
        bytes_(bytes) {
    if (bytes > 0 && memory_ == nullptr) throw std::bad_alloc();
  }
  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

struct PlanOptions {
  std::string kernel;      // forced by name; empty: the library's choice
  std::string cpu_target;  // forced instruction set; empty: the best of this machine
  // That of the executors that the plan will run on; 0: that of the default pool.
  std::int32_t max_concurrency = 0;
};

// A kernel chosen for shapes and options; making a plan reads no data. A plan is immutable: many
// threads may run it at once.
class Plan {
 public:
  Plan(Operation operation, const Problem& problem, const PlanOptions& options = {}) {
    tilewise_plan_options raw;
    tilewise_plan_options_init(&raw);
    raw.kernel = options.kernel.empty() ? nullptr : options.kernel.c_str();
    raw.cpu_target = options.cpu_target.empty() ? nullptr : options.cpu_target.c_str();
    raw.max_concurrency = options.max_concurrency;
    tilewise_plan* plan = nullptr;
    check(tilewise_plan_create(static_cast<std::int32_t>(operation), &problem, &raw, &plan));
    plan_.reset(plan);
  }

  std::string kernel() const { return tilewise_plan_kernel(plan_.get()); }
  std::string reason() const { return tilewise_plan_reason(plan_.get()); }
  Workspace make_workspace() const {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    check(tilewise_plan_workspace(plan_.get(), &bytes, &alignment));
    return Workspace(bytes, alignment);
  }

  // Runs the plan. Allocates nothing.
  void run(const Problem& problem, const Workspace& workspace,
           const tilewise_executor* executor = nullptr) const {
    check(tilewise_plan_run(plan_.get(), &problem, workspace.data(), workspace.bytes(), executor));
  }

 private:
  struct Destroy {
    void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
  };
  std::unique_ptr<tilewise_plan, Destroy> plan_;
};

// Returns the names of the kernels of an operation, in order of preference.
inline std::vector<std::string> kernel_names(Operation operation) {
  std::vector<std::string> names;
  const std::int32_t raw = static_cast<std::int32_t>(operation);
  const std::int32_t count = tilewise_kernel_count(raw);
  names.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) names.emplace_back(tilewise_kernel_name(raw, i));
  return names;
}

// Returns "" if the kernel supports the problem, else the reason why not.
inline std::string why_not(Operation operation, const std::string& kernel, const Problem& problem) {
  const tilewise_status status =
      tilewise_kernel_supports(static_cast<std::int32_t>(operation), kernel.c_str(), &problem);
  return status == TILEWISE_OK ? std::string() : std::string(tilewise_last_error());
}

}  // namespace tilewise

#endif  // TILEWISE_TILEWISE_HPP_
