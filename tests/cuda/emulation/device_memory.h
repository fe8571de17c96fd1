// The global memory of the emulated device: memory of the host, known by its address.
#pragma once

#include <cstddef>

namespace tilewise::emulation {

// Allocates memory full of NaN. nullptr if there is not enough.
void* allocate(std::size_t bytes);

// Frees memory. Returns whether it had been allocated.
bool release(void* memory);

// Whether all bytes belong to one allocation.
bool is_device_memory(const void* memory, std::size_t bytes);

}  // namespace tilewise::emulation
