// The bulk tensor copy engine (TMA): maps as the driver encodes them, copies that land and stores
// that read and write as late as they can, when no thread of the block can go on without.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::emulation {

inline constexpr std::size_t kMapRank = 4;
using Coordinates = std::array<std::int32_t, kMapRank>;

// What a CUtensorMap holds here: a tensor of 16-bit numbers, its first dimension contiguous.
struct TensorMap {
  std::uint64_t mark;  // that the encoder made it
  std::byte* data;
  std::array<std::uint64_t, kMapRank> sizes;
  std::array<std::uint64_t, kMapRank> strides;  // in bytes
  std::array<std::uint16_t, kMapRank> box;

  std::uint32_t box_bytes() const;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

// cuTensorMapEncodeTiled: checks what the driver's manual asks for, and refuses what is not
// emulated: other ranks, element types, swizzles, steps and fills than cuda_sm90 uses.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

// Where the byte of a shared address lies once 16-byte chunks are exchanged over 128 bytes: bits 4
// to 6 of its address become those exclusive or bits 7 to 9.
constexpr std::uint32_t swizzled_address(std::uint32_t address) {
  return address ^ (address >> 3 & 0x70u);
}

// Of a block.
class CopyEngine {
 public:
  void begin() {
    copies_.clear();
    stores_.clear();
  }

  // From a fiber.
  static void prefetch(const void* map);
  static void prefetch(const void* map, const Coordinates& first);
  void copy(std::uint32_t to, const void* map, const Coordinates& first, std::uint32_t barrier);

  // Stores of the thread: to a map; those so far are a group; waits until such have read shared
  // memory, or also written.
  void store(const void* map, const Coordinates& first, std::uint32_t from);
  void commit();
  void tma_store_wait(bool read_only);

  // Lands one copy, the last or any, or takes a store a step further; false: there is none.
  bool go_on();
  // No copy has still to land, no store to read.
  bool idle() const;
  // What has been read is written, though the block has ended.
  void finish();

 private:
  struct Copy {
    std::uint32_t to;
    TensorMap map;
    Coordinates first;
    std::uint32_t barrier;
  };
  struct Store {
    TensorMap map;
    Coordinates first;
    std::uint32_t from;
    int thread;
    bool committed;
    std::vector<std::byte> numbers;  // none: they have not been read
  };

  void land(std::size_t which);
  void advance(std::size_t which);

  std::vector<Copy> copies_;   // that have not landed, in order
  std::vector<Store> stores_;  // that have not been written
};

}  // namespace tilewise::emulation
