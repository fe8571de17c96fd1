#include "cuda/emulation/wgmma_operands.h"

#include <array>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/tma.h"
#include "math/float8.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint32_t kChunkBytes = 16;
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

// Reads the numbers of the 16 bytes whose address before the swizzle is `address`.
void read_chunk(std::uint32_t address, WgmmaType type, float* to, int step,
                std::vector<ReadSegment>& read) {
  const std::uint32_t swizzled = swizzled_address(address);
  SharedMemory& shared = block().shared;
  unsigned char numbers[kChunkBytes];
  std::memcpy(numbers, shared.async_at(swizzled, kChunkBytes, kName), kChunkBytes);
  if (std::memcmp(numbers, shared.at(swizzled, kChunkBytes, kName), kChunkBytes) != 0)
    fail("%s: reads at address %u what was written without a fence of the async proxy", kName,
         swizzled);
  note(swizzled, read);
  const std::size_t bytes = static_cast<std::size_t>(bytes_of(type));
  for (std::size_t i = 0; i < kChunkBytes / bytes; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, numbers + i * bytes, bytes);
    to[static_cast<int>(i) * step] = number(bits, type);
  }
}

std::array<float, 65536> fp16_numbers() {
  std::array<float, 65536> numbers;
  for (std::uint32_t bits = 0; bits < numbers.size(); ++bits)
    numbers[bits] = math::to_float(math::Float16{static_cast<std::uint16_t>(bits)});
  return numbers;
}

// A few columns at a time, whose sums stay in the CPU's registers.
inline __attribute__((always_inline)) void multiply_add_inline(float* sums, const float* left,
                                                               const float* right, int width,
                                                               int depth) {
  constexpr int kColumns = 32;
  for (int row = 0; row < kWgmmaRows; ++row) {
    for (int first = 0; first < width; first += kColumns) {
      float* const to = sums + row * width + first;
      float own[kColumns];
      for (int c = 0; c < kColumns; ++c) own[c] = to[c];
      for (int k = 0; k < depth; ++k) {
        const float factor = left[row * depth + k];
        const float* const from = right + k * width + first;
        for (int c = 0; c < kColumns; ++c) own[c] += factor * from[c];
      }
      for (int c = 0; c < kColumns; ++c) to[c] = own[c];
    }
  }
}

__attribute__((target("avx2"))) void multiply_add_avx2(float* sums, const float* left,
                                                       const float* right, int width, int depth) {
  multiply_add_inline(sums, left, right, width, depth);
}

}  // namespace

float number(std::uint32_t bits, WgmmaType type) {
  static const std::array<float, 65536> fp16_values = fp16_numbers();
  switch (type) {
    case WgmmaType::kE4M3:
      return math::to_float(math::Float8E4M3{static_cast<std::uint8_t>(bits)});
    case WgmmaType::kE5M2:
      return math::to_float(math::Float8E5M2{static_cast<std::uint8_t>(bits)});
    case WgmmaType::kFp16:
      return fp16_values[bits & 0xFFFF];
    default:
      return math::to_float(math::BFloat16{static_cast<std::uint16_t>(bits)});
  }
}

void read_rows(std::uint64_t descriptor, int rows, WgmmaType type, float* to, int row_step,
               int step, std::vector<ReadSegment>& read) {
  const Layout layout = layout_of(descriptor);
  for (int row = 0; row < rows; ++row) {
    const std::uint32_t address = layout.address +
                                  static_cast<std::uint32_t>(row / kGroupRows) * layout.stride +
                                  static_cast<std::uint32_t>(row % kGroupRows) * kRowBytes;
    for (int byte = 0; byte < kWgmmaDepthBytes; byte += static_cast<int>(kChunkBytes)) {
      const int k = byte / bytes_of(type);
      read_chunk(address + static_cast<std::uint32_t>(byte), type, to + row * row_step + k * step,
                 step, read);
    }
  }
}

void read_columns(std::uint64_t descriptor, int columns, WgmmaType type, float* to,
                  std::vector<ReadSegment>& read) {
  constexpr int kDepth = depth_of(WgmmaType::kBf16);
  constexpr int kChunk = 8;  // numbers
  const Layout layout = layout_of(descriptor);
  for (int first = 0; first < columns; first += kRowNumbers) {
    for (int k = 0; k < kDepth; ++k) {
      const std::uint32_t address =
          layout.address + static_cast<std::uint32_t>(first / kRowNumbers) * layout.leading +
          static_cast<std::uint32_t>(k / kGroupRows) * layout.stride +
          static_cast<std::uint32_t>(k % kGroupRows) * kRowBytes;
      for (int c = 0; c < kRowNumbers; c += kChunk) {
        read_chunk(address + static_cast<std::uint32_t>(c) * 2, type, to + k * columns + first + c,
                   1, read);
      }
    }
  }
}

void multiply_add(float* sums, const float* left, const float* right, int width, int depth) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return multiply_add_avx2(sums, left, right, width, depth);
  multiply_add_inline(sums, left, right, width, depth);
}

}  // namespace tilewise::emulation
