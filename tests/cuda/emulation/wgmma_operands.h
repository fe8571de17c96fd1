// The operands of wgmma as floats, and their product.
#pragma once

#include <cstdint>
#include <vector>

namespace tilewise::emulation {

inline constexpr int kWgmmaRows = 64;
inline constexpr int kWgmmaDepth = 16;  // of the summed dimension
inline constexpr int kMaxColumns = 256;

// A segment of shared memory that an operand is read from, and its number of changes at that time.
struct ReadSegment {
  std::uint32_t number;
  std::uint32_t changes;
};

// The 16-bit number as a float.
float number(std::uint16_t bits, bool fp16);

// Reads `rows` rows of 16 numbers by the matrix descriptor of PTX ISA 9.7.15.5.1, for rows that are
// contiguous along the summed dimension. Number k of row r goes to to[r * row_step + k * step]. The
// segments read are appended to `read`. Called from a fiber.
void read_rows(std::uint64_t descriptor, int rows, bool fp16, float* to, int row_step, int step,
               std::vector<ReadSegment>& read);

// Reads 16 rows of `columns` numbers, contiguous across the summed dimension, like read_rows().
//   to (16, columns)
void read_columns(std::uint64_t descriptor, int columns, bool fp16, float* to,
                  std::vector<ReadSegment>& read);

// sums (64, width) += left (64, 16) right (16, width), fp32 from the first summand to the last.
void multiply_add(float* sums, const float* left, const float* right, int width);

}  // namespace tilewise::emulation
