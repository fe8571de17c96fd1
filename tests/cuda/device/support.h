// For the tests on devices: which GPU there is, and plans for it.
#pragma once

#include "cuda/host/runtime.h"
#include "registry/support.h"

namespace tilewise::tests {

inline bool has_device() { return cuda::device_count() > 0; }
inline bool has_hopper() {
  cuda::DeviceInfo device;
  return has_device() && cuda::find_device(0, &device) == TILEWISE_OK && device.major == 9;
}

// Makes every tensor of a request a tensor of the device, without moving it: for plans only.
inline tilewise_problem on_cuda(tilewise_problem request) {
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::out, &tilewise_problem::lse}) {
    (request.*member).device = TILEWISE_CUDA;
  }
  return request;
}

inline problem::Status plan_on_cuda(const Case& description, const char* kernel, plan::Plan* plan) {
  const Instance instance(description);
  plan::Options options;
  options.kernel = kernel;
  return plan::make_plan(Operation::kForward, on_cuda(instance.request()), options, plan);
}

}  // namespace tilewise::tests
