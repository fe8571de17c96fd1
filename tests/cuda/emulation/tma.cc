#include "cuda/emulation/tma.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/cluster.h"
#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/machine.h"
#include "cuda/emulation/work.h"

namespace tilewise::emulation {
namespace {

constexpr std::uint64_t kMagic = 0x7E4503A97E4503A9u;
constexpr std::uint32_t kSpanBytes = 128;  // of a swizzled row of a box
constexpr std::uint64_t kAlignment = 16;

// What the driver refuses in a map, or nullptr.
const char* refusal(std::uint64_t element_bytes, cuuint32_t rank, const void* data,
                    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                    const cuuint32_t* steps) {
  constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32;
  constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
  constexpr cuuint32_t kMaxBox = 256;
  if (rank != kMapRank) return "rank";
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) return "address";
  for (std::size_t d = 0; d < kMapRank; ++d) {
    if (sizes[d] == 0 || sizes[d] > kMaxSize) return "size";
    if (box[d] == 0 || box[d] > kMaxBox) return "box";
    if (steps[d] != 1) return "step";
  }
  for (std::size_t d = 0; d + 1 < kMapRank; ++d) {
    if (strides[d] % kAlignment != 0 || strides[d] >= kMaxStride) return "stride";
  }
  return box[0] * element_bytes == kSpanBytes ? nullptr : "width of the box";
}

const TensorMap& map_at(const void* address) {
  TensorMap map;
  std::memcpy(&map.magic, address, sizeof(map.magic));
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(CUtensorMap) != 0 || map.magic != kMagic)
    fail("cp.async.bulk.tensor: no tensor map at %p", address);
  return *static_cast<const TensorMap*>(address);
}

// Whether the part of the box that is inside of the tensor is memory of the device.
bool is_in_device_memory(const TensorMap& map, const Coordinates& first) {
  std::uint64_t begin = 0;
  std::uint64_t end = map.strides[0];
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

// The part of a row of a box that is inside of the tensor.
struct BoxRow {
  std::byte* data;
  std::size_t offset;  // in the row
  std::size_t bytes;   // 0: none
};
// Row `row` of a box, counted over all of its dimensions but the first.
BoxRow box_row(const TensorMap& map, const Coordinates& first, std::uint32_t row) {
  std::byte* data = map.data;
  for (std::size_t d = 1; d < kMapRank; ++d) {
    const std::int64_t at = first[d] + static_cast<std::int64_t>(row % map.box[d]);
    row /= map.box[d];
    if (at < 0 || at >= static_cast<std::int64_t>(map.sizes[d])) return {};
    data += static_cast<std::uint64_t>(at) * map.strides[d];
  }
  const std::int64_t begin = std::max<std::int64_t>(-std::int64_t{first[0]}, 0);
  const std::int64_t end =
      std::min<std::int64_t>(map.box[0], static_cast<std::int64_t>(map.sizes[0]) - first[0]);
  if (begin >= end) return {};
  const auto bytes = static_cast<std::int64_t>(map.strides[0]);
  return {data + (first[0] + begin) * bytes, static_cast<std::size_t>(begin * bytes),
          static_cast<std::size_t>((end - begin) * bytes)};
}

// Checks the address and the box of an instruction.
void check_box(const TensorMap& map, const Coordinates& first, std::uint32_t address) {
  if (address % kSpanBytes != 0)
    fail("cp.async.bulk.tensor: address %u is no multiple of %u", address, kSpanBytes);
  if (!is_in_device_memory(map, first))
    fail("cp.async.bulk.tensor: the box at (%d, %d, %d, %d) is not memory of the device", first[0],
         first[1], first[2], first[3]);
}

// Checks the operands of a copy of contiguous bytes.
void check_bytes(const void* global, std::uint32_t address, std::uint32_t bytes) {
  if (address % kAlignment != 0 || reinterpret_cast<std::uintptr_t>(global) % kAlignment != 0 ||
      bytes % kAlignment != 0)
    fail("cp.async.bulk: an address or the number of bytes is no multiple of 16");
  if (!is_device_memory(global, bytes))
    fail("cp.async.bulk: %u bytes at %p are not memory of the device", bytes, global);
}

// Calls chunk(address, byte, count) for each chunk of a row of a box in shared memory.
template <class Chunk>
void for_chunks(std::uint32_t row_address, const Chunk& chunk) {
  constexpr std::uint32_t kChunk = 16;
  for (std::uint32_t byte = 0; byte < kSpanBytes; byte += kChunk)
    chunk(swizzled_address(row_address + byte), byte, kChunk);
}

}  // namespace

std::uint32_t TensorMap::box_bytes() const {
  std::uint32_t bytes = static_cast<std::uint32_t>(strides[0]);
  for (const std::uint16_t size : box) bytes *= size;
  return bytes;
}

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const std::uint64_t element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  if (reinterpret_cast<std::uintptr_t>(map) % alignof(CUtensorMap) != 0 ||
      refusal(element_bytes, rank, data, sizes, strides, box, steps) != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap own = {kMagic, static_cast<std::byte*>(data), {}, {element_bytes}, {}};
  for (std::size_t d = 0; d < kMapRank; ++d) {
    own.sizes[d] = sizes[d];
    if (d > 0) own.strides[d] = strides[d - 1];
    own.box[d] = static_cast<std::uint16_t>(box[d]);
  }
  std::memcpy(map, &own, sizeof(own));
  return CUDA_SUCCESS;
}

void Tma::prefetch(const void* map) { map_at(map); }
void Tma::prefetch(const void* map, const Coordinates& first) {
  check_waited_for_dependency("cp.async.bulk.prefetch.tensor");
  check_box(map_at(map), first, 0);
}

void Tma::copy(std::uint32_t to, const void* map, const Coordinates& first, std::uint32_t barrier) {
  check_waited_for_dependency("cp.async.bulk.tensor");
  const TensorMap& from = map_at(map);
  check_box(from, first, to);
  block().barriers.check_copy(barrier);
  block().shared.begin_copy(to, from.box_bytes());
  copies_.push_back({to, from, first, nullptr, from.box_bytes(), barrier, &block()});
}

void Tma::copy_to_both(std::uint32_t to, const void* map, const Coordinates& first,
                       std::uint32_t barrier) {
  Block* const peer = block().peer;
  if (peer == nullptr || !block().knows_peer)
    fail("cp.async.bulk.tensor: the other block for a multicast may not have begun, or has ended");
  copy(to, map, first, barrier);
  Copy other = copies_.back();
  other.target = peer;
  const InBlockOf current(*peer);
  peer->barriers.check_copy(barrier);
  peer->shared.begin_copy(to, other.count);
  copies_.push_back(other);
}

void Tma::copy_to_cluster(std::uint32_t to, std::uint32_t from, std::uint32_t bytes,
                          std::uint32_t barrier) {
  if (from % kAlignment != 0 || bytes % kAlignment != 0)
    fail("cp.async.bulk: an address or the number of bytes is no multiple of 16");
  const auto* const data =
      reinterpret_cast<const std::byte*>(block().shared.async_at(from, bytes, "cp.async.bulk"));
  if (!block().shared.is_visible_to_async_proxy(from, bytes))
    fail("cp.async.bulk: what is to be copied was written without a fence.proxy.async");
  Copy own = {0, {}, {}, nullptr, bytes, 0, nullptr, from, {}};
  const InBlockOf other(to);
  own.to = other.address();
  own.target = &block();
  own.barrier = InBlockOf(barrier).address();
  block().barriers.check_copy(own.barrier);
  block().shared.begin_copy(own.to, bytes);
  // Memory of its own only after all that may fail: a failed fiber is not unwound.
  copies_.push_back(own);
  copies_.back().own.assign(data, data + bytes);
}

void Tma::copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                     std::uint32_t barrier) {
  check_waited_for_dependency("cp.async.bulk");
  check_bytes(from, to, bytes);
  block().barriers.check_copy(barrier);
  block().shared.begin_copy(to, bytes);
  copies_.push_back({to, {}, {}, static_cast<const std::byte*>(from), bytes, barrier, &block()});
}

void Tma::store(const void* map, const Coordinates& first, std::uint32_t from) {
  check_waited_for_dependency("cp.async.bulk.tensor");
  const TensorMap& to = map_at(map);
  check_box(to, first, from);
  static_cast<void>(block().shared.async_at(from, to.box_bytes(), "cp.async.bulk.tensor"));
  if (!block().shared.is_visible_to_async_proxy(from, to.box_bytes()))
    fail("cp.async.bulk.tensor: what is to be stored was written without a fence.proxy.async");
  stores_.push_back({to, first, nullptr, from, to.box_bytes(), machine().running, false, {}});
}

void Tma::reduce_add(float* to, std::uint32_t from, std::uint32_t bytes) {
  check_waited_for_dependency("cp.reduce.async.bulk");
  check_bytes(to, from, bytes);
  static_cast<void>(block().shared.async_at(from, bytes, "cp.reduce.async.bulk"));
  if (!block().shared.is_visible_to_async_proxy(from, bytes))
    fail("cp.reduce.async.bulk: what is to be added was written without a fence.proxy.async");
  stores_.push_back({{}, {}, to, from, bytes, machine().running, false, {}});
}

void Tma::commit() {
  for (Store& store : stores_) store.committed |= store.thread == machine().running;
}

void Tma::store_wait(bool read_only) {
  const int own = machine().running;
  const auto is_awaited = [&](const Store& store) {
    return store.thread == own && store.committed && (store.numbers.empty() || !read_only);
  };
  while (std::any_of(stores_.begin(), stores_.end(), is_awaited))
    wait_for(&thread(), "waits for its bulk stores", 0);
}

bool Tma::idle() const {
  return copies_.empty() && std::none_of(stores_.begin(), stores_.end(),
                                         [](const Store& store) { return store.numbers.empty(); });
}

bool Tma::advance_one() {
  const std::size_t count = copies_.size() + stores_.size();
  if (count == 0) return false;
  Machine& m = machine();
  // Without shuffling: the last load, then the first store.
  const std::size_t which = m.shuffles        ? m.random() % count
                            : copies_.empty() ? 0
                                              : copies_.size() - 1;
  if (which < copies_.size()) {
    land(which);
  } else {
    advance(which - copies_.size());
  }
  return true;
}

void Tma::land(std::size_t which) {
  const Copy copy = copies_[which];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(which));
  if (copy.target != &block() && copy.target != block().peer)
    return record("the block that a copy by TMA goes to has ended");
  if (copy.from != 0 && std::memcmp(block().shared.async_at(copy.from, copy.count, "cp.async.bulk"),
                                    copy.own.data(), copy.count) != 0)
    record("what a copy to the other block had still to read was written");
  const InBlockOf current(*copy.target);
  land_in_target(copy);
}

void Tma::land_in_target(const Copy& copy) {
  const std::uint32_t bytes = copy.count;
  work.copied_bytes += bytes;
  const std::byte* const contiguous = copy.from != 0 ? copy.own.data() : copy.bytes;
  if (contiguous != nullptr) block().shared.write_async(copy.to, contiguous, bytes);
  for (std::uint32_t row = 0; contiguous == nullptr && row < bytes / kSpanBytes; ++row) {
    std::byte numbers[kSpanBytes] = {};
    const BoxRow own = box_row(copy.map, copy.first, row);
    if (own.bytes > 0) std::memcpy(numbers + own.offset, own.data, own.bytes);
    for_chunks(copy.to + row * kSpanBytes,
               [&](std::uint32_t address, std::uint32_t byte, std::uint32_t count) {
                 block().shared.write_async(address, numbers + byte, count);
               });
  }
  block().shared.end_copy(copy.to, bytes);
  block().barriers.complete(copy.barrier, bytes);
}

void Tma::advance(std::size_t which) {
  Store& store = stores_[which];
  const std::uint32_t bytes = store.count;
  const void* const waiting = &block().threads[static_cast<std::size_t>(store.thread)];
  if (store.numbers.empty()) {
    if (!block().shared.is_visible_to_async_proxy(store.from, bytes))
      record("what a bulk store had still to read in shared memory was written");
    store.numbers.resize(bytes);
    if (store.sums != nullptr) {
      std::memcpy(store.numbers.data(),
                  block().shared.async_at(store.from, bytes, "cp.reduce.async.bulk"), bytes);
    }
    for (std::uint32_t row = 0; store.sums == nullptr && row < bytes / kSpanBytes; ++row) {
      const std::uint32_t first = row * kSpanBytes;
      for_chunks(
          store.from + first, [&](std::uint32_t address, std::uint32_t byte, std::uint32_t count) {
            std::memcpy(store.numbers.data() + first + byte,
                        block().shared.async_at(address, count, "cp.async.bulk.tensor"), count);
          });
    }
  } else {
    write(store);
    stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  wake(waiting);
}

void Tma::write(const Store& store) {
  if (store.sums != nullptr) {
    for (std::size_t i = 0; i < store.count / sizeof(float); ++i) {
      float number;
      std::memcpy(&number, store.numbers.data() + i * sizeof(number), sizeof(number));
      store.sums[i] += number;
    }
    return;
  }
  for (std::uint32_t row = 0; row < store.count / kSpanBytes; ++row) {
    const BoxRow own = box_row(store.map, store.first, row);
    if (own.bytes > 0)
      std::memcpy(own.data, store.numbers.data() + row * kSpanBytes + own.offset, own.bytes);
  }
}

void Tma::write_pending_stores() {
  while (!stores_.empty()) advance(0);
}

}  // namespace tilewise::emulation
