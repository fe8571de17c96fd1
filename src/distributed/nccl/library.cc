#include "distributed/nccl/library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace tilewise::distributed::nccl {
namespace {

struct Loaded {
  Library library = {};
  char error[256] = "";

  Loaded() {
    const char* const given = std::getenv("TILEWISE_NCCL_LIBRARY");
    const char* const name = given != nullptr && given[0] != '\0' ? given : "libnccl.so.2";
    // It stays loaded to the end of the process, like its threads.
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* const reason = dlerror();
      std::snprintf(error, sizeof(error), "%.240s", reason != nullptr ? reason : name);
      return;
    }
    find(handle, name, "ncclGetUniqueId", &library.get_unique_id);
    find(handle, name, "ncclCommInitRankConfig", &library.comm_init_rank);
    find(handle, name, "ncclCommDestroy", &library.comm_destroy);
    find(handle, name, "ncclCommAbort", &library.comm_abort);
    find(handle, name, "ncclCommCount", &library.comm_count);
    find(handle, name, "ncclCommUserRank", &library.comm_user_rank);
    find(handle, name, "ncclCommCuDevice", &library.comm_cu_device);
    find(handle, name, "ncclCommGetAsyncError", &library.comm_get_async_error);
    find(handle, name, "ncclGetErrorString", &library.get_error_string);
    find(handle, name, "ncclGroupStart", &library.group_start);
    find(handle, name, "ncclGroupEnd", &library.group_end);
    find(handle, name, "ncclSend", &library.send);
    find(handle, name, "ncclRecv", &library.receive);
  }

  template <class Function>
  void find(void* handle, const char* file, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, name));
    if (*function == nullptr && error[0] == '\0')
      std::snprintf(error, sizeof(error), "%.180s has no %s", file, name);
  }
};

}  // namespace

Status find_library(const Library** library) {
  static const Loaded loaded;
  *library = &loaded.library;
  if (loaded.error[0] == '\0') return TILEWISE_OK;
  return problem::fail(TILEWISE_UNSUPPORTED, "nccl: cannot be loaded: %s", loaded.error);
}

Status check(const Library& library, Result result, const char* what) {
  if (result == kSuccess || result == kInProgress) return TILEWISE_OK;
  const Status status = result == kRemoteError ? TILEWISE_REMOTE_ERROR : TILEWISE_DEVICE_ERROR;
  return problem::fail(status, "nccl: %s: %s", what, library.get_error_string(result));
}

}  // namespace tilewise::distributed::nccl
