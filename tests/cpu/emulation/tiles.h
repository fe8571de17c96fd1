// The tile registers of AMX for one thread: eight registers of 16 rows of 64 bytes. Where the real
// instructions would fault, the process ends with a message.
#pragma once

#include <cstdint>

namespace tilewise::emulation {

// Between these two calls the thread owns the registers, which are zeros at first. There is one
// palette.
void configure_tiles();
void release_tiles();
// stride: bytes from row to row
void load_tile(int tile, const void* from, std::int64_t stride);
void store_tile(int tile, void* to, std::int64_t stride);
void clear_tile(int tile);
// sum (16, 16) += a (16 rows of 32 bf16) * b (16 pairs of rows, 16 columns)
void multiply_tiles(int sum, int a, int b);

}  // namespace tilewise::emulation
