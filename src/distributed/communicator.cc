#include "distributed/communicator.h"

#include <cstdint>
#include <cstdio>

#include "problem/tensor_checks.h"

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

namespace {

// Calls the engine for a request that has messages: call(&failed_rank).
template <class Call>
Status call_engine(const tilewise_communicator& communicator, const tilewise_exchange& request,
                   const char* activity, const Call& call) {
  if (request.send_count == 0 && request.receive_count == 0) return TILEWISE_OK;
  std::int32_t failed_rank = -1;
  problem::clear_message();
  const Status status = call(&failed_rank);
  if (status == TILEWISE_OK) return TILEWISE_OK;
  char reason[256];  // of the engine
  std::snprintf(reason, sizeof(reason), "%s", problem::message());
  const char* const separator = reason[0] != '\0' ? ": " : "";
  return fail(status, "%s: rank %d of %d failed, says rank %d%s%s", activity, failed_rank,
              communicator.size, communicator.rank, separator, reason);
}

}  // namespace

Status exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                const char* activity) {
  return call_engine(communicator, request, activity, [&](std::int32_t* failed_rank) {
    return communicator.exchange(communicator.self, &request, failed_rank);
  });
}

Status start_exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                      void* stream, const char* activity) {
  return call_engine(communicator, request, activity, [&](std::int32_t* failed_rank) {
    return communicator.start(communicator.self, &request, stream, failed_rank);
  });
}

Status finish_exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                       void* stream, const char* activity) {
  return call_engine(communicator, request, activity, [&](std::int32_t* failed_rank) {
    return communicator.finish(communicator.self, stream, failed_rank);
  });
}

Status check_device(const tilewise_communicator& communicator, const problem::Problem& problem) {
  if (problem.device == TILEWISE_CPU || communicator.size == 1) return TILEWISE_OK;
  if (communicator.start == nullptr || communicator.finish == nullptr) {
    return fail(TILEWISE_UNSUPPORTED, "communicator: takes host memory only, but q is on %s",
                problem::device_text(problem.device, problem.device_index).text);
  }
  if (communicator.device_index == problem.device_index) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "communicator: is of cuda:%d, but q is on %s",
              communicator.device_index,
              problem::device_text(problem.device, problem.device_index).text);
}

Status check_messages(const tilewise_exchange& request, std::int32_t size) {
  if (!(request.timeout_seconds > 0)) {
    return fail(TILEWISE_INVALID_ARGUMENT, "timeout_seconds: is %g, must be > 0",
                request.timeout_seconds);
  }
  const auto check_list = [&](const tilewise_message* messages, std::int32_t count) {
    for (std::int32_t m = 0; m < count; ++m) {
      if (messages[m].peer < 0 || messages[m].peer >= size) {
        return fail(TILEWISE_INVALID_ARGUMENT, "peer: is %d, must be 0 to %d", messages[m].peer,
                    size - 1);
      }
      if (messages[m].bytes < 0) {
        return fail(TILEWISE_INVALID_ARGUMENT, "bytes: is %lld, must be >= 0",
                    problem::printable(messages[m].bytes));
      }
    }
    return Status{TILEWISE_OK};
  };
  TILEWISE_RETURN_IF_ERROR(check_list(request.sends, request.send_count));
  return check_list(request.receives, request.receive_count);
}

}  // namespace tilewise::distributed
