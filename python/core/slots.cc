#include "slots.h"

#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

using Problem = tilewise_problem;

// A tensor argument of a call: its field, and whether it is written.
struct Slot {
  const char* name;
  tilewise_tensor Problem::*field;
  Access access;
};
constexpr Slot kForward[] = {
    {"q", &Problem::q, Access::kRead},      {"k", &Problem::k, Access::kRead},
    {"v", &Problem::v, Access::kRead},      {"out", &Problem::out, Access::kWrite},
    {"lse", &Problem::lse, Access::kWrite},
};
constexpr Slot kBackward[] = {
    {"dout", &Problem::dout, Access::kRead},
    {"q", &Problem::q, Access::kRead},
    {"k", &Problem::k, Access::kRead},
    {"v", &Problem::v, Access::kRead},
    {"out", &Problem::out, Access::kRead},
    {"lse", &Problem::lse, Access::kRead},
    {"dlse", &Problem::dlse, Access::kRead},
    {"dq", &Problem::dq, Access::kWrite},
    {"dk", &Problem::dk, Access::kWrite},
    {"dv", &Problem::dv, Access::kWrite},
    {"dbias", &Problem::dbias, Access::kWrite},
    {"dsink", &Problem::dsink, Access::kWrite},
    {"dalibi_slopes", &Problem::dalibi_slopes, Access::kWrite},
};

template <std::size_t n>
void set_all(const Slot (&slots)[n], const nb::tuple& values, Call* call) {
  if (values.size() != n) raise(PyExc_TypeError, "%zu tensors, must be %zu", values.size(), n);
  for (std::size_t i = 0; i < n; ++i)
    call->set_tensor(slots[i].field, slots[i].name, values[i], slots[i].access);
}

}  // namespace

void set_slots(std::int32_t operation, const nb::tuple& values, Call* call) {
  if (operation == TILEWISE_FORWARD) return set_all(kForward, values, call);
  set_all(kBackward, values, call);
}

}  // namespace tilewise::python
