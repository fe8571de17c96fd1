#include "call.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

using Problem = tilewise_problem;

// ---- values -----------------------------------------------------------------------------------

[[noreturn]] void refuse(const char* name, nb::handle value, const char* expected) {
  const nb::str text(nb::repr(value));
  raise(PyExc_TypeError, "%s: is %s, must be %s", name, text.c_str(), expected);
}

double number(const char* name, nb::handle value) {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(name, value, "a number");
  }
  return result;
}

std::uint64_t natural(const char* name, nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  const unsigned long long result = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
  if (PyErr_Occurred()) {
    PyErr_Clear();
    refuse(name, value, "an integer from 0 to 2^64 - 1");
  }
  return result;
}

// Accepts True, False, 1, 0 and scalars of any framework that are one of them. Python would also
// take "no" and [False] for true; here they are errors.
std::int32_t truth(const char* name, nb::handle value) {
  if (value.ptr() == Py_True) return 1;
  if (value.ptr() == Py_False) return 0;
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (index.is_valid()) {
    const long long result = PyLong_AsLongLong(index.ptr());
    if (result == 0 || result == 1) return static_cast<std::int32_t>(result);
  }
  PyErr_Clear();
  const nb::str dtype(nb::getattr(value, "dtype", nb::none()));
  const nb::object rank = nb::getattr(value, "ndim", nb::none());
  if (std::strcmp(dtype.c_str(), "bool") == 0 && rank.equal(nb::int_(0))) {
    const int result = PyObject_IsTrue(value.ptr());
    if (result >= 0) return result;
    PyErr_Clear();
  }
  refuse(name, value, "True or False");
}

[[noreturn]] void refuse_value(const char* name, nb::handle value, const char* expected) {
  const nb::str text(nb::repr(value));
  raise(PyExc_ValueError, "%s: is %s, must be %s", name, text.c_str(), expected);
}

// In C a number that is not finite stands for 1/sqrt(D). In Python None does.
void set_scale(const char* name, nb::handle value, Problem* problem) {
  const double scale = number(name, value);
  if (!std::isfinite(scale)) refuse_value(name, value, "finite; None stands for 1/sqrt(D)");
  problem->softmax_scale = scale;
}

// In C -1 stands for the number of tokens. In Python None does.
template <auto field>
void set_length(const char* name, nb::handle value, Problem* problem) {
  const std::int64_t length = integer(name, value);
  if (length < 0) refuse_value(name, value, "0 or more; None stands for the number of tokens");
  problem->*field = length;
}

void set_window(const char* name, nb::handle value, Problem* problem) {
  constexpr const char* kExpected =
      "a pair (left, right) of integers from 0 on, -1 or None for no bound";
  if (!PySequence_Check(value.ptr()) || PySequence_Size(value.ptr()) != 2) {
    PyErr_Clear();
    refuse(name, value, kExpected);
  }
  const auto side = [&](int index) {
    const nb::object bound = value[index];
    const std::int64_t keys = bound.is_none() ? -1 : integer(name, bound);
    if (keys < -1) refuse_value(name, value, kExpected);
    return keys;
  };
  problem->window_left = side(0);
  problem->window_right = side(1);
}

std::int32_t choice(const char* name, nb::handle value, const char* first, const char* second) {
  const char* const text = nb::isinstance<nb::str>(value) ? nb::cast<const char*>(value) : "";
  if (std::strcmp(text, first) == 0) return 0;
  if (std::strcmp(text, second) == 0) return 1;
  const nb::str given(nb::repr(value));
  raise(PyExc_ValueError, "%s: is %s, must be '%s' or '%s'", name, given.c_str(), first, second);
}

// ---- options: one row each --------------------------------------------------------------------

using Set = void (*)(const char* name, nb::handle value, Problem* problem);
struct Option {
  const char* name;
  Set set;
};

template <auto field>
void set_truth(const char* name, nb::handle value, Problem* problem) {
  problem->*field = truth(name, value);
}
template <auto field>
void set_number(const char* name, nb::handle value, Problem* problem) {
  problem->*field = number(name, value);
}
template <auto field>
void set_natural(const char* name, nb::handle value, Problem* problem) {
  problem->*field = natural(name, value);
}

constexpr Option kOptions[] = {
    {"causal", set_truth<&Problem::causal>},
    {"window_size", set_window},
    {"window", set_window},
    {"softmax_scale", set_scale},
    {"softcap", set_number<&Problem::softcap>},
    {"dropout_p", set_number<&Problem::dropout_p>},
    {"dropout_seed", set_natural<&Problem::dropout_seed>},
    {"dropout_offset", set_natural<&Problem::dropout_offset>},
    {"max_seqlen_q", set_length<&Problem::max_seqlen_q>},
    {"max_seqlen_k", set_length<&Problem::max_seqlen_k>},
    {"deterministic", set_truth<&Problem::deterministic>},
    {"batch_invariant", set_truth<&Problem::batch_invariant>},
    {"accumulate", set_truth<&Problem::accumulate>},
    {"layout", [](const char* name, nb::handle value,
                  Problem* problem) { problem->layout = choice(name, value, "bshd", "bhsd"); }},
    {"alignment",
     [](const char* name, nb::handle value, Problem* problem) {
       problem->alignment = choice(name, value, "bottom_right", "top_left");
     }},
};
static_assert(TILEWISE_BSHD == 0 && TILEWISE_BHSD == 1 && TILEWISE_BOTTOM_RIGHT == 0 &&
                  TILEWISE_TOP_LEFT == 1,
              "choice() gives the number of a layout and of an alignment");

struct TensorOption {
  const char* name;
  tilewise_tensor Problem::*field;
};
constexpr TensorOption kTensorOptions[] = {
    {"cu_seqlens_q", &Problem::cu_seqlens_q},
    {"cu_seqlens_k", &Problem::cu_seqlens_k},
    {"seqused_q", &Problem::seqused_q},
    {"seqused_k", &Problem::seqused_k},
    {"page_table", &Problem::page_table},
    {"phi", &Problem::phi},
    {"q_descale", &Problem::q_descale},
    {"k_descale", &Problem::k_descale},
    {"v_descale", &Problem::v_descale},
    {"slices", &Problem::slices},
    {"parts", &Problem::parts},
    {"mask", &Problem::mask},
    {"bias", &Problem::bias},
    {"alibi_slopes", &Problem::alibi_slopes},
    {"sink", &Problem::sink},
};

void clear_tensors(Problem* problem) {
  for (const TensorOption& option : kTensorOptions) problem->*option.field = {};
  for (const auto field : {&Problem::q, &Problem::k, &Problem::v, &Problem::out, &Problem::lse,
                           &Problem::dout, &Problem::dlse, &Problem::dq, &Problem::dk, &Problem::dv,
                           &Problem::dbias, &Problem::dsink, &Problem::dalibi_slopes}) {
    problem->*field = {};
  }
}

}  // namespace

Call::Call(const tilewise_problem& options, std::uintptr_t stream)
    : problem_(options), stream_(stream) {
  clear_tensors(&problem_);
}

void Call::set_tensor(tilewise_tensor tilewise_problem::*field, const char* name, nb::handle value,
                      Access access) {
  if (value.is_none()) return;
  Array array = read_array(name, value, access, stream_);
  problem_.*field = array.tensor;
  if (array.owner.is_valid()) owners_[owned_++] = std::move(array.owner);
}

void Call::set_option(const char* caller, const char* name, nb::handle value) {
  for (const Option& option : kOptions) {
    if (std::strcmp(name, option.name) != 0) continue;
    if (!value.is_none()) option.set(name, value, &problem_);
    return;
  }
  for (const TensorOption& option : kTensorOptions) {
    if (std::strcmp(name, option.name) == 0)
      return set_tensor(option.field, name, value, Access::kRead);
  }
  raise(PyExc_TypeError, "%s() got an unexpected keyword argument '%s'", caller, name);
}

void Call::set_options(const char* caller, const nb::dict& options) {
  if (options.size() == 0) return;
  if (options.contains("window") && options.contains("window_size")) {
    raise(PyExc_TypeError, "%s() got both 'window' and 'window_size', which are one option",
          caller);
  }
  for (const auto [name, value] : options) set_option(caller, text_of("option", name), value);
}

std::int64_t integer(const char* name, nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  const long long result = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (result == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(name, value, "an integer of 64 bits");
  }
  return result;
}

const char* text_of(const char* name, nb::handle value) {
  const char* const text =
      PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    refuse(name, value, "a text");
  }
  return text;
}

std::uintptr_t stream_number(nb::handle stream) {
  if (stream.is_none()) return 0;
  if (nb::hasattr(stream, "__cuda_stream__"))
    return natural("stream", stream.attr("__cuda_stream__")()[1]);
  for (const char* attribute : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, attribute)) return nb::cast<std::uintptr_t>(stream.attr(attribute));
  }
  return natural("stream", stream);
}

namespace {

// Pools by their number of threads. They live as long as the process, since a program uses few
// sizes.
tilewise_pool* pool_of(std::int32_t threads) {
  static std::mutex mutex;
  static auto* const pools = new std::map<std::int32_t, tilewise_pool*>;
  const std::lock_guard lock(mutex);
  tilewise_pool*& pool = (*pools)[threads];
  if (pool == nullptr) check(tilewise_pool_create(threads, &pool));
  return pool;
}

}  // namespace

Executor::Executor(nb::handle threads, std::uintptr_t stream) {
  if (!threads.is_none()) {
    const std::int64_t count = integer("threads", threads);
    if (count < 1 || count > 4096)
      raise(PyExc_ValueError, "threads: is %lld, must be 1 to 4096", static_cast<long long>(count));
    tilewise_executor_init(&executor_);
    if (count > 1)
      check(tilewise_pool_executor(pool_of(static_cast<std::int32_t>(count)), &executor_));
    given_ = true;
  }
  if (stream == 0) return;
  if (!given_) tilewise_executor_init(&executor_);
  executor_.stream = reinterpret_cast<void*>(stream);
  given_ = true;
}

}  // namespace tilewise::python
