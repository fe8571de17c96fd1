#include "array.h"

#include <nanobind/ndarray.h>

#include <cstring>

#include "errors.h"
#include "expected_dtype.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

// ---- names that every call looks up, made once ------------------------------------------------

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// ---- NumPy's array interface, C side ----------------------------------------------------------
// https://numpy.org/doc/stable/reference/arrays.interface.html

struct ArrayInterface {
  int two;
  int rank;
  char kind;
  int item_size;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int kNotSwapped = 0x200;
constexpr int kWriteable = 0x400;

// NumPy makes the name of a dtype in Python, which takes 10 us each time. It is compared once;
// after that the dtype is recognised by its address.
bool has_dtype(nb::handle value, const char* wanted, PyObject*& known) {
  const nb::object dtype = nb::getattr(value, "dtype", nb::none());
  if (known != nullptr && dtype.ptr() == known) return true;
  const nb::object name = nb::getattr(dtype, "name", nb::none());
  if (!nb::isinstance<nb::str>(name) || std::strcmp(nb::cast<const char*>(name), wanted) != 0)
    return false;
  if (known == nullptr) known = nb::object(dtype).release().ptr();
  return true;
}
bool is_bfloat16(nb::handle value) {
  static PyObject* known = nullptr;  // the dtype; written with the GIL
  return has_dtype(value, "bfloat16", known);
}
bool is_e4m3(nb::handle value) {
  static PyObject* known = nullptr;
  return has_dtype(value, "float8_e4m3fn", known);
}
bool is_e5m2(nb::handle value) {
  static PyObject* known = nullptr;
  return has_dtype(value, "float8_e5m2", known);
}

std::int32_t dtype_of(const char* name, const ArrayInterface& array, nb::handle value) {
  switch (array.kind) {
    case 'f':
      return array.item_size == 8   ? TILEWISE_FP64
             : array.item_size == 4 ? TILEWISE_FP32
             : array.item_size == 2 ? TILEWISE_FP16
             : is_e5m2(value)       ? TILEWISE_E5M2
                                    : 0;
    case 'i':
      return array.item_size == 4 ? TILEWISE_INT32 : array.item_size == 8 ? TILEWISE_INT64 : 0;
    case 'b':
      return TILEWISE_BOOL;
    case 'u':
      return array.item_size == 1 && takes_bytes(name) ? TILEWISE_BOOL : 0;
    case 'V':  // what NumPy knows nothing of: types as ml_dtypes defines them
      if (array.item_size == 1) return is_e4m3(value) ? TILEWISE_E4M3 : 0;
      return array.item_size == 2 && is_bfloat16(value) ? TILEWISE_BF16 : 0;
    default:
      return 0;
  }
}

[[noreturn]] void refuse_dtype(const char* name, nb::handle value) {
  const nb::str dtype(nb::getattr(value, "dtype", nb::str("unknown")));
  raise(PyExc_TypeError, "%s: dtype is %s, must be %s", name, dtype.c_str(), expected_dtype(name));
}

[[noreturn]] void refuse_write(const char* name) {
  raise(PyExc_ValueError, "%s: is read-only, and would be written to", name);
}

// Sets shape and strides of a tensor; the strides are in units of which an element has `item`.
void set_shape(const char* name, int rank, const auto* shape, const auto* strides,
               std::int64_t item, tilewise_tensor* tensor) {
  if (rank == 0) {
    raise(PyExc_ValueError, "%s: rank is 0, must be 1 to %d", name, TILEWISE_MAX_RANK);
  }
  tensor->rank = rank;  // the library refuses a rank that is too high
  bool is_empty = false;
  for (int d = 0; d < rank && d < TILEWISE_MAX_RANK; ++d) {
    tensor->shape[d] = shape[d];
    is_empty = is_empty || shape[d] == 0;
  }
  // Without elements strides have no meaning, and NumPy's may be anything.
  if (is_empty && rank <= TILEWISE_MAX_RANK) {
    const tilewise_tensor dense = tilewise_contiguous(nullptr, tensor->dtype, rank, tensor->shape);
    std::memcpy(tensor->strides, dense.strides, sizeof(dense.strides));
    return;
  }
  for (int d = 0; d < rank && d < TILEWISE_MAX_RANK; ++d) {
    tensor->strides[d] = strides[d] / item;
    if (strides[d] % item != 0 && shape[d] > 1) {
      raise(PyExc_ValueError,
            "%s: stride %d is %lld bytes, must be a multiple of the element's %lld", name, d,
            static_cast<long long>(strides[d]), static_cast<long long>(item));
    }
  }
}

// numpy.ma keeps an array's mask apart from its data, and the array interface exports only the
// data.
void refuse_masked(const char* name, nb::handle value) {
  static PyObject* const plain =
      nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  if (value.type().ptr() == plain) return;
  if (!nb::hasattr(value, "filled") || !nb::hasattr(value, "mask")) return;
  raise(PyExc_TypeError,
        "%s: is a masked array, whose mask would be ignored; pass its data, and mask= for hidden "
        "keys",
        name);
}

// False if `value` has no such interface.
bool read_array_struct(const char* name, nb::handle value, Access access, Array* array) {
  static PyObject* const attribute = interned("__array_struct__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(value.ptr(), attribute));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return false;
  }
  const auto* const view =
      static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (view == nullptr || view->two != 2) {
    PyErr_Clear();
    return false;
  }
  refuse_masked(name, value);
  tilewise_tensor& tensor = array->tensor;
  tensor.dtype = dtype_of(name, *view, value);
  if (tensor.dtype == 0 || !(view->flags & kNotSwapped)) refuse_dtype(name, value);
  if (access == Access::kWrite && !(view->flags & kWriteable)) refuse_write(name);
  tensor.data = view->data;
  set_shape(name, view->rank, view->shape, view->strides, view->item_size, &tensor);
  return true;
}

// ---- DLPack -----------------------------------------------------------------------------------
// https://dmlc.github.io/dlpack/latest/c_api.html

struct ManagedTensor {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};
struct VersionedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};
constexpr std::uint64_t kReadOnly = 1;
constexpr int kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;

std::int32_t dtype_of(const char* name, const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  constexpr Code kFloat8E4M3 = static_cast<Code>(10);  // "fn"; codes of DLPack 1.1
  constexpr Code kFloat8E5M2 = static_cast<Code>(12);
  if (dtype.lanes != 1) return 0;
  const auto is = [&](Code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits;
  };
  return is(Code::Float, 64)    ? TILEWISE_FP64
         : is(Code::Float, 32)  ? TILEWISE_FP32
         : is(Code::Float, 16)  ? TILEWISE_FP16
         : is(Code::Bfloat, 16) ? TILEWISE_BF16
         : is(kFloat8E4M3, 8)   ? TILEWISE_E4M3
         : is(kFloat8E5M2, 8)   ? TILEWISE_E5M2
         : is(Code::Int, 32)    ? TILEWISE_INT32
         : is(Code::Int, 64)    ? TILEWISE_INT64
         : is(Code::Bool, 8)    ? TILEWISE_BOOL
         : is(Code::UInt, 8)    ? (takes_bytes(name) ? TILEWISE_BOOL : 0)
                                : 0;
}

// Calls value.__dlpack__ for version 1 or, if the producer is older, for the previous version.
nb::object export_capsule(nb::handle value, const nb::dict& arguments) {
  const nb::object method = value.attr("__dlpack__");
  try {
    return method(nb::arg("max_version") = nb::make_tuple(1, 1), **arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(**arguments);
}

// Returns the capsule of `value`, whose contents are ready on `stream`.
nb::object dlpack_capsule(const char* name, nb::handle value, int device, std::uintptr_t stream) {
  nb::dict arguments;
  // In the protocol, 1 is CUDA's default stream, and 0 is not used.
  if (device == kCuda || device == kCudaManaged) arguments["stream"] = stream == 0 ? 1 : stream;
  try {
    return export_capsule(value, arguments);
  } catch (nb::python_error& error) {
    const nb::str why(error.value());
    nb::raise_from(
        error, PyExc_ValueError,
        "%s: its memory cannot be shared: %s. (A tensor that requires a gradient belongs to "
        "tilewise.torch, or detach() it; a traced value of JAX belongs to tilewise.jax.)",
        name, why.c_str());
  }
}

const nb::dlpack::dltensor& tensor_in(const char* name, const nb::object& capsule,
                                      bool* read_only) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* const managed = static_cast<const VersionedTensor*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major == 1) {
      *read_only = (managed->flags & kReadOnly) != 0;
      return managed->tensor;
    }
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    *read_only = false;
    return static_cast<const ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))
        ->tensor;
  }
  raise(PyExc_TypeError, "%s: __dlpack__ gives a capsule that is not DLPack's of version 0 or 1",
        name);
}

void set_tensor(const char* name, nb::handle value, const nb::dlpack::dltensor& given,
                tilewise_tensor* tensor) {
  tensor->dtype = dtype_of(name, given.dtype);
  if (tensor->dtype == 0) refuse_dtype(name, value);
  const bool on_cuda =
      given.device.device_type == kCuda || given.device.device_type == kCudaManaged;
  tensor->device = on_cuda ? TILEWISE_CUDA : TILEWISE_CPU;
  tensor->device_index = on_cuda ? given.device.device_id : 0;
  tensor->data =
      given.data == nullptr ? nullptr : static_cast<char*>(given.data) + given.byte_offset;
  if (given.strides != nullptr) {
    set_shape(name, given.ndim, given.shape, given.strides, 1, tensor);
  } else if (given.ndim >= 1 && given.ndim <= TILEWISE_MAX_RANK) {
    const tilewise_tensor dense =
        tilewise_contiguous(tensor->data, tensor->dtype, given.ndim, given.shape);
    set_shape(name, given.ndim, dense.shape, dense.strides, 1, tensor);
  } else {
    // Its rank is refused later.
    set_shape(name, given.ndim, given.shape, given.shape, 1, tensor);
  }
}

int dlpack_device(const char* name, nb::handle value) {
  if (!nb::hasattr(value, "__dlpack__") || !nb::hasattr(value, "__dlpack_device__")) {
    const nb::str type(value.type().attr("__name__"));
    raise(PyExc_TypeError, "%s: is a %s, must be an array: NumPy's or any other with __dlpack__",
          name, type.c_str());
  }
  int device = 0;
  const nb::object pair = value.attr("__dlpack_device__")();
  if (!nb::isinstance<nb::tuple>(pair) || !nb::try_cast(pair[0], device)) {
    raise(PyExc_TypeError, "%s: __dlpack_device__ gives no pair of numbers", name);
  }
  if (device != kCpu && device != kCuda && device != kCudaHost && device != kCudaManaged) {
    raise(PyExc_ValueError, "%s: lies on a device of DLPack's type %d, must be the CPU or CUDA",
          name, device);
  }
  return device;
}

// JAX's arrays never change, but their capsules do not say so.
bool is_of_jax(nb::handle value) {
  const nb::object module = nb::getattr(value.type(), "__module__", nb::none());
  return nb::isinstance<nb::str>(module) &&
         std::strncmp(nb::cast<const char*>(module), "jax", 3) == 0;
}

void read_dlpack(const char* name, nb::handle value, Access access, std::uintptr_t stream,
                 Array* array) {
  array->owner = dlpack_capsule(name, value, dlpack_device(name, value), stream);
  bool read_only = false;
  const nb::dlpack::dltensor& given = tensor_in(name, array->owner, &read_only);
  if (access == Access::kWrite && (read_only || is_of_jax(value))) refuse_write(name);
  set_tensor(name, value, given, &array->tensor);
}

}  // namespace

Array read_array(const char* name, nb::handle value, Access access, std::uintptr_t stream) {
  Array array;
  if (!read_array_struct(name, value, access, &array))
    read_dlpack(name, value, access, stream, &array);
  return array;
}

}  // namespace tilewise::python
