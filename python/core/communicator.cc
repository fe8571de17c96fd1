#include "communicator.h"

#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

// PyBUF_WRITE, which the headers of the stable interface leave out. PyTorch takes no memory that is
// only readable, so that sends are writable too.
constexpr int kWrite = 0x200;

nb::list list_of(const tilewise_message* messages, std::int32_t count) {
  nb::list list;
  for (std::int32_t m = 0; m < count; ++m) {
    static char nothing = 0;  // a memoryview needs an address
    char* const data = messages[m].bytes > 0 ? static_cast<char*>(messages[m].data) : &nothing;
    nb::object memory = nb::steal(
        PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(messages[m].bytes), kWrite));
    if (!memory.is_valid()) throw nb::python_error();
    list.append(nb::make_tuple(memory, messages[m].peer, messages[m].tag));
  }
  return list;
}

}  // namespace

Communicator::Communicator(std::int32_t rank, std::int32_t size, bool any_thread, nb::object engine)
    : engine_(std::move(engine)) {
  communicator_.struct_size = sizeof(communicator_);
  communicator_.rank = rank;
  communicator_.size = size;
  communicator_.calls_from_any_thread = any_thread ? 1 : 0;
  communicator_.self = this;
  communicator_.exchange = [](void* self, const tilewise_exchange* request,
                              std::int32_t* failed_rank) {
    const nb::gil_scoped_acquire acquired;
    return static_cast<Communicator*>(self)->exchange(*request, failed_rank);
  };
  communicator_.abort = [](void* self) {
    const tilewise_communicator& device = static_cast<Communicator*>(self)->device_;
    if (device.abort != nullptr) device.abort(device.self);
    const nb::gil_scoped_acquire acquired;
    try {
      static_cast<Communicator*>(self)->engine_.attr("abort")();
    } catch (const nb::python_error&) {  // the others reach their time limits
    }
  };
}

tilewise_status Communicator::exchange(const tilewise_exchange& request,
                                       std::int32_t* failed_rank) noexcept {
  *failed_rank = communicator_.rank;
  try {
    const nb::object failure = engine_.attr("exchange")(
        list_of(request.sends, request.send_count),
        list_of(request.receives, request.receive_count), request.timeout_seconds);
    if (failure.is_none()) return TILEWISE_OK;
    *failed_rank = nb::cast<std::int32_t>(failure[1]);
    const nb::str message(failure[2]);
    return tilewise_fail(nb::cast<bool>(failure[0]) ? TILEWISE_TIMEOUT : TILEWISE_REMOTE_ERROR,
                         message.c_str());
  } catch (...) {
    thrown_ = std::current_exception();
    return tilewise_fail(TILEWISE_INTERNAL_ERROR, "exchange() raised an exception");
  }
}

void Communicator::use(const nb::object& nccl) {
  nccl_ = nccl;
  device_ = nb::cast<Nccl&>(nccl).get();
  communicator_.device_index = device_.device_index;
  communicator_.start = [](void* self, const tilewise_exchange* request, void* stream,
                           std::int32_t* failed_rank) {
    const tilewise_communicator& device = static_cast<Communicator*>(self)->device_;
    return device.start(device.self, request, stream, failed_rank);
  };
  communicator_.finish = [](void* self, void* stream, std::int32_t* failed_rank) {
    const tilewise_communicator& device = static_cast<Communicator*>(self)->device_;
    return device.finish(device.self, stream, failed_rank);
  };
}

Nccl::Nccl(const nb::bytes& id, std::int32_t size, std::int32_t rank, std::int32_t device) {
  if (id.size() != TILEWISE_NCCL_ID_BYTES) {
    raise(PyExc_ValueError, "id: has %lld bytes, must have %d", static_cast<long long>(id.size()),
          static_cast<int>(TILEWISE_NCCL_ID_BYTES));
  }
  tilewise_status status;
  {
    const nb::gil_scoped_release released;
    status = tilewise_nccl_communicator_create(id.c_str(), size, rank, device, &nccl_);
  }
  check(status);
}

Nccl::~Nccl() {
  const nb::gil_scoped_release released;
  tilewise_nccl_communicator_destroy(nccl_);
}

nb::bytes Nccl::unique_id() {
  char id[TILEWISE_NCCL_ID_BYTES];
  check(tilewise_nccl_unique_id(id));
  return nb::bytes(id, sizeof(id));
}

tilewise_communicator Nccl::get() const {
  tilewise_communicator communicator;
  check(tilewise_nccl_communicator_get(nccl_, &communicator));
  return communicator;
}

void Communicator::rethrow() {
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace tilewise::python
