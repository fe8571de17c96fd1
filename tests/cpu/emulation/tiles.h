// The matrix unit of a thread: eight registers of 16 rows of 64 bytes. What its instructions would
// fault at ends the process with a message.
#pragma once

#include <cstdint>

namespace tilewise::emulation {

// Between these two calls the thread has the registers, zeros at first; the one palette there is.
void configure_tiles();
void release_tiles();
// stride: bytes from row to row
void load_tile(int tile, const void* from, std::int64_t stride);
void store_tile(int tile, void* to, std::int64_t stride);
void clear_tile(int tile);
// sum (16, 16) += a (16 rows of 32 bf16) * b (16 pairs of rows, 16 columns)
void multiply_tiles(int sum, int a, int b);

}  // namespace tilewise::emulation
