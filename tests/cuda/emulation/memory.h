// The memory of the emulated device: the host's, but known by its address.
#pragma once

#include <cstddef>

namespace tilewise::emulation {

// Full of NaN; nullptr if there is not so much.
void* allocate(std::size_t bytes);

// Whether it was allocated.
bool release(void* memory);

// Whether all of it is memory of one allocation.
bool is_device_memory(const void* memory, std::size_t bytes);

}  // namespace tilewise::emulation
