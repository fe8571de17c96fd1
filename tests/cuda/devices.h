// What GPUs the tests find.
#pragma once

#include "cuda/host/runtime.h"

namespace tilewise::tests {

inline bool has_device() { return cuda::device_count() > 0; }
inline bool has_hopper() {
  cuda::DeviceInfo device;
  return has_device() && cuda::find_device(0, &device) == TILEWISE_OK && device.major == 9;
}

}  // namespace tilewise::tests
