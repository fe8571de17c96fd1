#include "cuda/emulation/copy_engine.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/memory.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint64_t kMark = 0x7E4503A97E4503A9u;
constexpr std::uint64_t kElementBytes = 2;
constexpr std::uint32_t kSpanBytes = 128;  // over which chunks are exchanged: a row of a box
constexpr std::uint64_t kAlignment = 16;

// Of a driver that has looked at a map. nullptr: it takes the map.
const char* refusal(cuuint32_t rank, const void* data, const cuuint64_t* sizes,
                    const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps) {
  constexpr std::uint64_t kMostSize = std::uint64_t{1} << 32;
  constexpr std::uint64_t kMostStride = std::uint64_t{1} << 40;
  constexpr cuuint32_t kMostBox = 256;
  if (rank != kMapRank) return "rank";
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) return "address";
  for (std::size_t d = 0; d < kMapRank; ++d) {
    if (sizes[d] == 0 || sizes[d] > kMostSize) return "size";
    if (box[d] == 0 || box[d] > kMostBox) return "box";
    if (steps[d] != 1) return "step";
  }
  for (std::size_t d = 0; d + 1 < kMapRank; ++d) {
    if (strides[d] % kAlignment != 0 || strides[d] >= kMostStride) return "stride";
  }
  return box[0] * kElementBytes == kSpanBytes ? nullptr : "width of the box";
}

const TensorMap& map_at(const void* address) {
  TensorMap map;
  std::memcpy(&map.mark, address, sizeof(map.mark));
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(CUtensorMap) != 0 || map.mark != kMark)
    fail("cp.async.bulk.tensor: no tensor map at %p", address);
  return *static_cast<const TensorMap*>(address);
}

// The bytes of the tensor between the first and the last element of the box that are inside.
bool reads_device_memory(const TensorMap& map, const Coordinates& first) {
  std::uint64_t begin = 0;
  std::uint64_t end = kElementBytes;
  for (std::size_t d = 0; d < kMapRank; ++d) {
    const std::int64_t from = std::max<std::int64_t>(first[d], 0);
    const std::int64_t to = std::min<std::int64_t>(std::int64_t{first[d]} + map.box[d],
                                                   static_cast<std::int64_t>(map.sizes[d])) -
                            1;
    if (from > to) return true;
    begin += static_cast<std::uint64_t>(from) * map.strides[d];
    end += static_cast<std::uint64_t>(to) * map.strides[d];
  }
  return is_device_memory(map.data + begin, end - begin);
}

// Row `row` of a box, of whatever its dimensions but the first say; zeros outside of the tensor.
void read_row(const TensorMap& map, const Coordinates& first, std::uint32_t row,
              std::byte (&to)[kSpanBytes]) {
  std::memset(to, 0, kSpanBytes);
  const std::byte* from = map.data;
  for (std::size_t d = 1; d < kMapRank; ++d) {
    const std::int64_t at = first[d] + static_cast<std::int64_t>(row % map.box[d]);
    row /= map.box[d];
    if (at < 0 || at >= static_cast<std::int64_t>(map.sizes[d])) return;
    from += static_cast<std::uint64_t>(at) * map.strides[d];
  }
  const std::int64_t begin = std::max<std::int64_t>(-std::int64_t{first[0]}, 0);
  const std::int64_t end =
      std::min<std::int64_t>(map.box[0], static_cast<std::int64_t>(map.sizes[0]) - first[0]);
  if (begin >= end) return;
  constexpr std::int64_t kBytes = kElementBytes;
  std::memcpy(to + begin * kBytes, from + (first[0] + begin) * kBytes,
              static_cast<std::size_t>((end - begin) * kBytes));
}

}  // namespace

std::uint32_t TensorMap::box_bytes() const {
  std::uint32_t bytes = kElementBytes;
  for (const std::uint16_t size : box) bytes *= size;
  return bytes;
}

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (reinterpret_cast<std::uintptr_t>(map) % alignof(CUtensorMap) != 0 ||
      refusal(rank, data, sizes, strides, box, steps) != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap own = {kMark, static_cast<const std::byte*>(data), {}, {kElementBytes}, {}};
  for (std::size_t d = 0; d < kMapRank; ++d) {
    own.sizes[d] = sizes[d];
    if (d > 0) own.strides[d] = strides[d - 1];
    own.box[d] = static_cast<std::uint16_t>(box[d]);
  }
  std::memcpy(map, &own, sizeof(own));
  return CUDA_SUCCESS;
}

void CopyEngine::prefetch(const void* map) { map_at(map); }

void CopyEngine::copy(std::uint32_t to, const void* map, const Coordinates& first,
                      std::uint32_t barrier) {
  const TensorMap& from = map_at(map);
  if (to % kSpanBytes != 0)
    fail("cp.async.bulk.tensor: address %u is no multiple of %u", to, kSpanBytes);
  if (!reads_device_memory(from, first))
    fail("cp.async.bulk.tensor: the box at (%d, %d, %d, %d) is not memory of the device", first[0],
         first[1], first[2], first[3]);
  block().barriers.check_copy(barrier);
  block().shared.begin_copy(to, from.box_bytes());
  copies_.push_back({to, from, first, barrier});
}

bool CopyEngine::land() {
  if (copies_.empty()) return false;
  Machine& m = machine();
  const std::size_t which = m.shuffles ? m.random() % copies_.size() : copies_.size() - 1;
  const Copy copy = copies_[which];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(which));
  const std::uint32_t bytes = copy.map.box_bytes();
  for (std::uint32_t row = 0; row < bytes / kSpanBytes; ++row) {
    std::byte numbers[kSpanBytes];
    read_row(copy.map, copy.first, row, numbers);
    constexpr std::uint32_t kChunk = 16;
    for (std::uint32_t byte = 0; byte < kSpanBytes; byte += kChunk) {
      block().shared.write_async(swizzled_address(copy.to + row * kSpanBytes + byte),
                                 numbers + byte, kChunk);
    }
  }
  block().shared.end_copy(copy.to, bytes);
  block().barriers.complete(copy.barrier, bytes);
  return true;
}

}  // namespace tilewise::emulation
