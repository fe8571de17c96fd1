// The C interface of appends to a cache.
#include <tilewise/tilewise_append.h>

#include <cstring>

#include "capi/structs.h"
#include "plan/append.h"

void tilewise_append_init(tilewise_append* append) {
  if (append == nullptr) return;
  std::memset(append, 0, sizeof(*append));
  append->struct_size = sizeof(*append);
}

tilewise_status tilewise_append_run(const tilewise_append* append,
                                    const tilewise_executor* executor) {
  if (const tilewise_status status = tilewise::capi::check_struct("append", append);
      status != TILEWISE_OK)
    return status;
  return tilewise::plan::append(*append, executor);
}
