// NVIDIA's communication library, NCCL, found at run time: the library does not link to it. Its few
// declarations that are needed here are ours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem/status.h"

namespace tilewise::distributed::nccl {

using problem::Status;

inline constexpr std::size_t kIdBytes = 128;
struct UniqueId {
  char bytes[kIdBytes];
};

using Comm = struct ncclComm*;
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;
inline constexpr int kInt8 = 0;  // a data type: messages are bytes

// The first fields of ncclConfig_t, as of 2.14; later versions take the rest to be their defaults.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21403;
  int blocking = 0;
  int cga_cluster_size = INT32_MIN;  // undefined; of 2.17, in what would be padding
};

struct Library {
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_count)(Comm comm, int* count);
  Result (*comm_user_rank)(Comm comm, int* rank);
  Result (*comm_cu_device)(Comm comm, int* device);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* data, std::size_t count, int type, int peer, Comm comm, void* stream);
  Result (*receive)(void* data, std::size_t count, int type, int peer, Comm comm, void* stream);
};

// Loads the library once: the file that $TILEWISE_NCCL_LIBRARY names, or libnccl.so.2. Returns
// TILEWISE_UNSUPPORTED, with the loader's message, if there is none.
Status find_library(const Library** library);

// The status of a call; `what` names it in the message.
Status check(const Library& library, Result result, const char* what);

}  // namespace tilewise::distributed::nccl
