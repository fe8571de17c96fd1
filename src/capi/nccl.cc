// The C interface of communicators over NCCL.
#include <tilewise/tilewise_distributed.h>

#include <cstring>
#include <memory>

#include "capi/exceptions.h"
#include "cuda/host/runtime.h"
#include "distributed/nccl/communicator.h"
#include "problem/tensor_checks.h"

using tilewise::capi::without_exceptions;
using tilewise::distributed::nccl::Communicator;
using tilewise::distributed::nccl::Library;
using tilewise::distributed::nccl::UniqueId;
using tilewise::problem::fail;
using tilewise::problem::Status;

struct tilewise_nccl_communicator {
  std::unique_ptr<Communicator> communicator;
};

static_assert(TILEWISE_NCCL_ID_BYTES == sizeof(UniqueId), "The header states the size of an id.");

namespace {

// Makes a communicator by make(&communicator).
template <class Make>
Status make_communicator(tilewise_nccl_communicator** nccl, const Make& make) {
  if (nccl == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "nccl: is NULL");
  return without_exceptions("a communicator of NCCL", [&] {
    auto made = std::make_unique<tilewise_nccl_communicator>();
    TILEWISE_RETURN_IF_ERROR(make(&made->communicator));
    *nccl = made.release();
    return Status{TILEWISE_OK};
  });
}

}  // namespace

tilewise_status tilewise_nccl_unique_id(void* id) {
  if (id == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "id: is NULL");
  const Library* library = nullptr;
  TILEWISE_RETURN_IF_ERROR(tilewise::distributed::nccl::find_library(&library));
  UniqueId made;
  TILEWISE_RETURN_IF_ERROR(tilewise::distributed::nccl::check(
      *library, library->get_unique_id(&made), "ncclGetUniqueId"));
  std::memcpy(id, &made, sizeof(made));
  return TILEWISE_OK;
}

tilewise_status tilewise_nccl_communicator_create(const void* id, std::int32_t size,
                                                  std::int32_t rank, std::int32_t device_index,
                                                  tilewise_nccl_communicator** nccl) {
  if (id == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "id: is NULL");
  if (size < 1) return fail(TILEWISE_INVALID_ARGUMENT, "size: is %d, must be >= 1", size);
  if (rank < 0 || rank >= size)
    return fail(TILEWISE_INVALID_ARGUMENT, "rank: is %d, must be 0 to %d", rank, size - 1);
  tilewise::cuda::DeviceInfo device;
  TILEWISE_RETURN_IF_ERROR(tilewise::cuda::find_device(device_index, &device));
  UniqueId own;
  std::memcpy(&own, id, sizeof(own));
  return make_communicator(nccl, [&](std::unique_ptr<Communicator>* made) {
    return Communicator::create(own, size, rank, device_index, made);
  });
}

tilewise_status tilewise_nccl_communicator_wrap(void* comm, tilewise_nccl_communicator** nccl) {
  if (comm == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "comm: is NULL");
  return make_communicator(nccl, [&](std::unique_ptr<Communicator>* made) {
    return Communicator::wrap(static_cast<tilewise::distributed::nccl::Comm>(comm), made);
  });
}

void tilewise_nccl_communicator_destroy(tilewise_nccl_communicator* nccl) { delete nccl; }

tilewise_status tilewise_nccl_communicator_status(tilewise_nccl_communicator* nccl) {
  if (nccl == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "nccl: is NULL");
  return nccl->communicator->status();
}

tilewise_status tilewise_nccl_communicator_get(tilewise_nccl_communicator* nccl,
                                               tilewise_communicator* communicator) {
  if (nccl == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "nccl: is NULL");
  if (communicator == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "communicator: is NULL");
  *communicator = nccl->communicator->interface();
  return TILEWISE_OK;
}
