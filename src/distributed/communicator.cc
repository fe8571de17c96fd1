#include "distributed/communicator.h"

#include <cstdint>
#include <cstdio>

namespace tilewise::distributed {

using problem::fail;

Status check_communicator(const tilewise_communicator* communicator) {
  if (communicator == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "communicator: is NULL");
  if (communicator->struct_size < sizeof(tilewise_communicator)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "communicator: struct_size is %zu, must be %zu",
                communicator->struct_size, sizeof(tilewise_communicator));
  }
  if (communicator->size < 1) {
    return fail(TILEWISE_INVALID_ARGUMENT, "communicator: size is %d, must be >= 1",
                communicator->size);
  }
  if (communicator->rank < 0 || communicator->rank >= communicator->size) {
    return fail(TILEWISE_INVALID_ARGUMENT, "communicator: rank is %d, must be 0 to %d",
                communicator->rank, communicator->size - 1);
  }
  if (communicator->exchange == nullptr || communicator->abort == nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT, "communicator: %s is NULL",
                communicator->exchange == nullptr ? "exchange" : "abort");
  }
  return TILEWISE_OK;
}

Status exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                const char* activity) {
  if (request.send_count == 0 && request.receive_count == 0) return TILEWISE_OK;
  std::int32_t failed_rank = -1;
  problem::clear_message();
  const Status status = communicator.exchange(communicator.self, &request, &failed_rank);
  if (status == TILEWISE_OK) return TILEWISE_OK;
  char reason[256];  // of the engine
  std::snprintf(reason, sizeof(reason), "%s", problem::message());
  const char* const separator = reason[0] != '\0' ? ": " : "";
  return fail(status, "%s: rank %d of %d failed, says rank %d%s%s", activity, failed_rank,
              communicator.size, communicator.rank, separator, reason);
}

}  // namespace tilewise::distributed
