#include "quantise.h"

#include <tilewise/tilewise_quantise.h>

#include <array>
#include <cstring>

#include "array.h"
#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

struct Slot {
  const char* name;
  tilewise_tensor tilewise_quantisation::*field;
  Access access;
};
constexpr std::array<Slot, 5> kSlots = {{
    {"input", &tilewise_quantisation::input, Access::kRead},
    {"output", &tilewise_quantisation::output, Access::kWrite},
    {"descale", &tilewise_quantisation::descale, Access::kWrite},
    {"cu_seqlens", &tilewise_quantisation::cu_seqlens, Access::kRead},
    {"saturated", &tilewise_quantisation::saturated, Access::kWrite},
}};

std::int32_t layout_number(nb::handle layout) {
  if (layout.is_none()) return TILEWISE_BSHD;
  const char* const text = text_of("layout", layout);
  if (std::strcmp(text, "bshd") == 0) return TILEWISE_BSHD;
  if (std::strcmp(text, "bhsd") == 0) return TILEWISE_BHSD;
  raise(PyExc_ValueError, "layout: is '%s', must be 'bshd' or 'bhsd'", text);
}

std::uint64_t seed_number(nb::handle seed) {
  const nb::object index = nb::steal(PyNumber_Index(seed.ptr()));
  const unsigned long long number = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
  if (!PyErr_Occurred()) return number;
  PyErr_Clear();
  const nb::str text(nb::repr(seed));
  raise(PyExc_ValueError, "incoherent: is %s, must be a seed from 0 to 2^64 - 1, or None",
        text.c_str());
}

// `tensors` are in the order of kSlots; None for one that is absent.
void quantise(const nb::tuple& tensors, nb::handle layout, bool fixed_scales, nb::handle seed,
              nb::handle threads) {
  tilewise_quantisation task;
  tilewise_quantisation_init(&task);
  task.layout = layout_number(layout);
  task.fixed_scales = fixed_scales ? 1 : 0;
  task.incoherent = seed.is_none() ? 0 : 1;
  if (!seed.is_none()) task.seed = seed_number(seed);
  std::array<Array, kSlots.size()> arrays;
  for (std::size_t i = 0; i < kSlots.size(); ++i) {
    const Slot& slot = kSlots[i];
    const nb::handle value = tensors[i];
    if (value.is_none()) continue;
    const bool reads = fixed_scales && std::strcmp(slot.name, "descale") == 0;
    arrays[i] = read_array(slot.name, value, reads ? Access::kRead : slot.access, 0);
    task.*slot.field = arrays[i].tensor;
  }
  const Executor executor(threads, 0);
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = tilewise_quantise(&task, executor.get());
  }
  check(status);
}

}  // namespace

void bind_quantise(nb::module_& module) {
  module.def("quantise", &quantise, nb::arg("tensors"), nb::arg("layout").none(),
             nb::arg("fixed_scales"), nb::arg("seed").none(), nb::arg("threads").none());
}

}  // namespace tilewise::python
