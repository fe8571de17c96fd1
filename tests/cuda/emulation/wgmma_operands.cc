#include "cuda/emulation/wgmma_operands.h"

#include <array>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/tma.h"
#include "math/number.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint32_t kChunkBytes = 16;
constexpr int kChunk = 8;                 // numbers of a chunk
constexpr std::uint32_t kRowBytes = 128;  // of a swizzled row
constexpr int kRowNumbers = 64;
constexpr int kGroupRows = 8;
constexpr const char* kName = "wgmma.mma_async";

// The fields of a matrix descriptor, in bytes.
struct Layout {
  std::uint32_t address;
  std::uint32_t leading;
  std::uint32_t stride;
};

Layout layout_of(std::uint64_t descriptor) {
  constexpr std::uint64_t kKnown = 0x3FFFull | 0x3FFFull << 16 | 0x3FFFull << 32 | 3ull << 62;
  constexpr std::uint64_t kSwizzle128 = 1;
  if (descriptor >> 62 != kSwizzle128 || (descriptor & ~kKnown) != 0)
    fail("%s: descriptor %llx asks for a layout that is not emulated", kName,
         static_cast<unsigned long long>(descriptor));
  const auto field = [descriptor](int shift) {
    return static_cast<std::uint32_t>(descriptor >> shift & 0x3FFF) * kChunkBytes;
  };
  return {field(0), field(16), field(32)};
}

// Notes that an operand reads the segment of `address`.
void note(std::uint32_t address, std::vector<ReadSegment>& read) {
  const SharedMemory& shared = block().shared;
  const std::uint32_t number = SharedMemory::segment_of(address);
  if (!read.empty() && read.back().number == number) return;
  if (shared.segment(number).pending_copies != 0)
    fail("%s: reads at address %u what a copy has not written yet", kName, address);
  read.push_back({number, shared.segment(number).changes});
}

// Reads eight numbers: the 16 bytes whose address before the swizzle is `address`.
void read_chunk(std::uint32_t address, bool fp16, float* to, int step,
                std::vector<ReadSegment>& read) {
  const std::uint32_t swizzled = swizzled_address(address);
  SharedMemory& shared = block().shared;
  std::uint16_t numbers[kChunk];
  std::memcpy(numbers, shared.async_at(swizzled, kChunkBytes, kName), kChunkBytes);
  if (std::memcmp(numbers, shared.at(swizzled, kChunkBytes, kName), kChunkBytes) != 0)
    fail("%s: reads at address %u what was written without a fence of the async proxy", kName,
         swizzled);
  note(swizzled, read);
  for (int i = 0; i < kChunk; ++i) to[i * step] = number(numbers[i], fp16);
}

std::array<float, 65536> fp16_numbers() {
  std::array<float, 65536> numbers;
  for (std::uint32_t bits = 0; bits < numbers.size(); ++bits)
    numbers[bits] = math::to_float(math::Float16{static_cast<std::uint16_t>(bits)});
  return numbers;
}

// A few columns at a time, whose sums stay in the CPU's registers.
inline __attribute__((always_inline)) void multiply_add_inline(float* sums, const float* left,
                                                               const float* right, int width) {
  constexpr int kColumns = 32;
  for (int row = 0; row < kWgmmaRows; ++row) {
    for (int first = 0; first < width; first += kColumns) {
      float* const to = sums + row * width + first;
      float own[kColumns];
      for (int c = 0; c < kColumns; ++c) own[c] = to[c];
      for (int k = 0; k < kWgmmaDepth; ++k) {
        const float factor = left[row * kWgmmaDepth + k];
        const float* const from = right + k * width + first;
        for (int c = 0; c < kColumns; ++c) own[c] += factor * from[c];
      }
      for (int c = 0; c < kColumns; ++c) to[c] = own[c];
    }
  }
}

__attribute__((target("avx2"))) void multiply_add_avx2(float* sums, const float* left,
                                                       const float* right, int width) {
  multiply_add_inline(sums, left, right, width);
}

}  // namespace

float number(std::uint16_t bits, bool fp16) {
  static const std::array<float, 65536> fp16_values = fp16_numbers();
  return fp16 ? fp16_values[bits] : math::to_float(math::BFloat16{bits});
}

void read_rows(std::uint64_t descriptor, int rows, bool fp16, float* to, int row_step, int step,
               std::vector<ReadSegment>& read) {
  const Layout layout = layout_of(descriptor);
  for (int row = 0; row < rows; ++row) {
    const std::uint32_t address = layout.address +
                                  static_cast<std::uint32_t>(row / kGroupRows) * layout.stride +
                                  static_cast<std::uint32_t>(row % kGroupRows) * kRowBytes;
    for (int k = 0; k < kWgmmaDepth; k += kChunk) {
      read_chunk(address + static_cast<std::uint32_t>(k) * 2, fp16, to + row * row_step + k * step,
                 step, read);
    }
  }
}

void read_columns(std::uint64_t descriptor, int columns, bool fp16, float* to,
                  std::vector<ReadSegment>& read) {
  const Layout layout = layout_of(descriptor);
  for (int first = 0; first < columns; first += kRowNumbers) {
    for (int k = 0; k < kWgmmaDepth; ++k) {
      const std::uint32_t address =
          layout.address + static_cast<std::uint32_t>(first / kRowNumbers) * layout.leading +
          static_cast<std::uint32_t>(k / kGroupRows) * layout.stride +
          static_cast<std::uint32_t>(k % kGroupRows) * kRowBytes;
      for (int c = 0; c < kRowNumbers; c += kChunk) {
        read_chunk(address + static_cast<std::uint32_t>(c) * 2, fp16, to + k * columns + first + c,
                   1, read);
      }
    }
  }
}

void multiply_add(float* sums, const float* left, const float* right, int width) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return multiply_add_avx2(sums, left, right, width);
  multiply_add_inline(sums, left, right, width);
}

}  // namespace tilewise::emulation
