// TMA: tensor maps as the driver encodes them, loads that land as late as possible, and stores that
// read and write as late as possible, when no thread of the block can go on otherwise.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::emulation {

inline constexpr std::size_t kMapRank = 4;
using Coordinates = std::array<std::int32_t, kMapRank>;

// The contents of a CUtensorMap in the emulation: a tensor of numbers of 8 or 16 bits whose first
// dimension is contiguous.
struct TensorMap {
  std::uint64_t magic;  // shows that the encoder made it
  std::byte* data;
  std::array<std::uint64_t, kMapRank> sizes;
  std::array<std::uint64_t, kMapRank> strides;  // in bytes, the first one of an element
  std::array<std::uint16_t, kMapRank> box;

  std::uint32_t box_bytes() const;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

// cuTensorMapEncodeTiled: checks what the driver's manual requires, and refuses what the emulation
// does not support: ranks, element types, swizzles, steps and fills that cuda_sm90 does not use.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

// The address of a byte in the 128-byte swizzle: bits 4 to 6 of the address become their exclusive
// or with bits 7 to 9.
constexpr std::uint32_t swizzled_address(std::uint32_t address) {
  return address ^ (address >> 3 & 0x70u);
}

struct Block;

// The loads and stores of a block.
class Tma {
 public:
  void begin() {
    copies_.clear();
    stores_.clear();
  }

  // Called from a fiber.
  static void prefetch(const void* map);
  static void prefetch(const void* map, const Coordinates& first);
  void copy(std::uint32_t to, const void* map, const Coordinates& first, std::uint32_t barrier);
  void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier);
  // copy() into both blocks of the cluster.
  void copy_to_both(std::uint32_t to, const void* map, const Coordinates& first,
                    std::uint32_t barrier);
  // From shared memory to the other block's; `to` and `barrier` are addresses of to_cluster().
  void copy_to_cluster(std::uint32_t to, std::uint32_t from, std::uint32_t bytes,
                       std::uint32_t barrier);

  // The thread's stores: starts one; makes a group of those so far; waits until its groups have
  // read shared memory, or have also written.
  void store(const void* map, const Coordinates& first, std::uint32_t from);
  void reduce_add(float* to, std::uint32_t from, std::uint32_t bytes);
  void commit();
  void store_wait(bool read_only);

  // Lands one load, the last or a random one, or advances one store. Returns false if there is
  // none.
  bool advance_one();
  // Whether all loads have landed and all stores have read.
  bool idle() const;
  // Writes what stores have read; called when the block has ended.
  void write_pending_stores();

 private:
  struct Copy {
    std::uint32_t to;
    TensorMap map;
    Coordinates first;
    const std::byte* bytes;  // contiguous ones, without a map; or nullptr
    std::uint32_t count;     // of bytes
    std::uint32_t barrier;
    Block* target;                    // whose shared memory and barrier these are
    std::uint32_t from = 0;           // in this block's shared memory, or 0
    std::vector<std::byte> own = {};  // what lay there when the copy began
  };
  struct Store {
    TensorMap map;
    Coordinates first;
    float* sums;  // the numbers are added to them, without a map; or nullptr
    std::uint32_t from;
    std::uint32_t count;  // of bytes
    int thread;
    bool committed;
    std::vector<std::byte> numbers;  // empty until they are read
  };

  void land(std::size_t which);
  static void land_in_target(const Copy& copy);
  void advance(std::size_t which);
  static void write(const Store& store);

  std::vector<Copy> copies_;   // that have not landed, in order
  std::vector<Store> stores_;  // that have not been written
};

}  // namespace tilewise::emulation
