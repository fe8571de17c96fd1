// The operands of wgmma as floats, and their product.
#pragma once

#include <cstdint>
#include <vector>

namespace tilewise::emulation {

inline constexpr int kWgmmaRows = 64;
inline constexpr int kWgmmaDepthBytes = 32;  // of the summed dimension
inline constexpr int kMaxWgmmaDepth = 32;
inline constexpr int kMaxColumns = 256;

enum class WgmmaType { kBf16, kFp16, kE4M3, kE5M2 };

constexpr int bytes_of(WgmmaType type) {
  return type == WgmmaType::kBf16 || type == WgmmaType::kFp16 ? 2 : 1;
}
// Numbers of the summed dimension in one product.
constexpr int depth_of(WgmmaType type) { return kWgmmaDepthBytes / bytes_of(type); }

// A segment of shared memory that an operand is read from, and its number of changes at that time.
struct ReadSegment {
  std::uint32_t number;
  std::uint32_t changes;
};

// The number, in the lowest bits, as a float.
float number(std::uint32_t bits, WgmmaType type);

// Reads `rows` rows of 32 bytes by the matrix descriptor of PTX ISA 9.7.15.5.1, for rows that are
// contiguous along the summed dimension. Number k of row r goes to to[r * row_step + k * step]. The
// segments read are appended to `read`. Called from a fiber.
void read_rows(std::uint64_t descriptor, int rows, WgmmaType type, float* to, int row_step,
               int step, std::vector<ReadSegment>& read);

// Reads 16 rows of `columns` 16-bit numbers, contiguous across the summed dimension, like
// read_rows().
//   to (16, columns)
void read_columns(std::uint64_t descriptor, int columns, WgmmaType type, float* to,
                  std::vector<ReadSegment>& read);

// sums (64, width) += left (64, depth) right (depth, width), fp32 from the first summand to the
// last.
void multiply_add(float* sums, const float* left, const float* right, int width, int depth);

}  // namespace tilewise::emulation
