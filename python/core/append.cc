#include "append.h"

#include <tilewise/tilewise_append.h>

#include <array>

#include "array.h"
#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

struct Slot {
  const char* name;
  tilewise_tensor tilewise_append::*field;
  Access access;
};
constexpr std::array<Slot, 14> kSlots = {{
    {"k_cache", &tilewise_append::k_cache, Access::kWrite},
    {"v_cache", &tilewise_append::v_cache, Access::kWrite},
    {"k", &tilewise_append::k, Access::kRead},
    {"v", &tilewise_append::v, Access::kRead},
    {"cu_seqlens_k", &tilewise_append::cu_seqlens_k, Access::kRead},
    {"cache_seqlens", &tilewise_append::cache_seqlens, Access::kRead},
    {"cache_batch_idx", &tilewise_append::cache_batch_idx, Access::kRead},
    {"page_table", &tilewise_append::page_table, Access::kRead},
    {"rotary_cos", &tilewise_append::rotary_cos, Access::kRead},
    {"rotary_sin", &tilewise_append::rotary_sin, Access::kRead},
    {"rotary_seqlens", &tilewise_append::rotary_seqlens, Access::kRead},
    {"q", &tilewise_append::q, Access::kRead},
    {"q_rotated", &tilewise_append::q_rotated, Access::kWrite},
    {"cu_seqlens_q", &tilewise_append::cu_seqlens_q, Access::kRead},
}};

// `tensors` are in the order of kSlots; None for one that is absent.
void append(const nb::tuple& tensors, bool interleaved, bool q_at_end, nb::handle stream) {
  const std::uintptr_t number = stream_number(stream);
  tilewise_append task;
  tilewise_append_init(&task);
  task.interleaved = interleaved ? 1 : 0;
  task.q_at_end = q_at_end ? 1 : 0;
  std::array<Array, kSlots.size()> arrays;
  for (std::size_t i = 0; i < kSlots.size(); ++i) {
    const nb::handle value = tensors[i];
    if (value.is_none()) continue;
    arrays[i] = read_array(kSlots[i].name, value, kSlots[i].access, number);
    task.*kSlots[i].field = arrays[i].tensor;
  }
  const Executor executor(nb::none(), number);
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = tilewise_append_run(&task, executor.get());
  }
  check(status);
}

}  // namespace

void bind_append(nb::module_& module) {
  module.def("append", &append, nb::arg("tensors"), nb::arg("interleaved"), nb::arg("q_at_end"),
             nb::arg("stream").none());
}

}  // namespace tilewise::python
