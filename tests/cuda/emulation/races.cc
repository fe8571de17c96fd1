#include "cuda/emulation/races.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/machine.h"

namespace tilewise::emulation {
namespace {

constexpr std::uintptr_t kWordBytes = 4;

bool has_instrumented_code = false;

std::unordered_map<std::uintptr_t, AccessedWord>& device_words() {
  static std::unordered_map<std::uintptr_t, AccessedWord> words;  // by address / kWordBytes
  return words;
}

void learn(Clock& own, const Clock& more) {
  if (own.size() < more.size()) own.resize(more.size());
  for (std::size_t t = 0; t < more.size(); ++t) own[t] = std::max(own[t], more[t]);
}

const char* name_of(Access access) {
  return access == Access::kRead ? "read" : access == Access::kWrite ? "write" : "atomic operation";
}

}  // namespace

void Races::begin(int threads, std::size_t shared_bytes) {
  barriers_.clear();
  if (!has_instrumented_code) return;
  const auto count = static_cast<std::size_t>(threads);
  clocks_.assign(count, Clock(count));
  for (std::size_t t = 0; t < count; ++t) clocks_[t][t] = 1;
  shared_.assign(shared_bytes / kWordBytes + 1, {});
}

bool Races::knows(const AccessedWord::Epoch& other) const {
  return other.time <= clocks_[threadIdx.x][other.thread];
}

void Races::check(AccessedWord& word, const void* address, std::uint8_t bytes, Access access) {
  const auto conflicts = [&](const AccessedWord::Epoch& other) {
    return other.time != 0 && (other.bytes & bytes) != 0 &&
           !(other.atomic && access == Access::kAtomic) &&
           (word.block != block().number || !knows(other));
  };
  const auto report = [&](const AccessedWord::Epoch& other, const char* what) {
    fail("a %s at %p and a %s by thread %u of block %lld are not ordered", name_of(access), address,
         what, unsigned{other.thread}, static_cast<long long>(word.block));
  };
  if (word.launch != machine().launches) {
    word = {};
    word.launch = machine().launches;
    word.block = block().number;
  }
  if (conflicts(word.write)) report(word.write, word.write.atomic ? "atomic operation" : "write");
  if (access != Access::kRead) {
    for (const AccessedWord::Epoch& other : word.reads) {
      if (conflicts(other)) report(other, "read");
    }
  }
  if (word.block != block().number) {
    word = {};
    word.launch = machine().launches;
    word.block = block().number;
  }
  const AccessedWord::Epoch own = {clocks_[threadIdx.x][threadIdx.x],
                                   static_cast<std::uint16_t>(threadIdx.x), bytes,
                                   access == Access::kAtomic};
  if (access != Access::kRead) {
    // Bytes that another thread has written remain those of one that knows of it.
    word.write = own;
    for (AccessedWord::Epoch& other : word.reads) other.bytes &= static_cast<std::uint8_t>(~bytes);
    return;
  }
  AccessedWord::Epoch* free = nullptr;
  for (AccessedWord::Epoch& other : word.reads) {
    if (other.time != 0 && other.thread == own.thread) {
      other.time = own.time;
      other.bytes |= bytes;
      return;
    }
    if (other.time == 0 || other.bytes == 0 || knows(other)) free = &other;
  }
  if (free == nullptr) free = &word.reads[next_read_++ % AccessedWord::kReads];
  *free = own;
}

void Races::access(const void* first, std::size_t bytes, Access access) {
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  const auto shared = reinterpret_cast<std::uintptr_t>(block().shared.data());
  const bool is_shared = address >= shared && address < shared + (shared_.size() - 1) * kWordBytes;
  if (!is_shared && !is_device_memory(first, bytes)) return;
  for (std::uintptr_t at = address; at < address + bytes;) {
    const std::uintptr_t word = at / kWordBytes;
    const std::uintptr_t end = std::min((word + 1) * kWordBytes, address + bytes);
    std::uint8_t mask = 0;
    for (std::uintptr_t byte = at; byte < end; ++byte)
      mask |= static_cast<std::uint8_t>(1u << byte % kWordBytes);
    check(is_shared ? shared_[word - shared / kWordBytes] : device_words()[word],
          reinterpret_cast<const void*>(at), mask, access);
    at = end;
  }
}

void Races::meet_block() {
  if (clocks_.empty()) return;
  Clock all(clocks_.size());
  for (std::size_t t = 0; t < all.size(); ++t) all[t] = clocks_[t][t];
  for (std::size_t t = 0; t < all.size(); ++t) {
    clocks_[t] = all;
    ++clocks_[t][t];
  }
}

void Races::meet_warp(std::uint32_t mask) {
  if (clocks_.empty()) return;
  const std::size_t first = threadIdx.x / kWarpThreads * kWarpThreads;
  Clock all;
  for (std::size_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((mask >> lane & 1) != 0) learn(all, clocks_[first + lane]);
  }
  for (std::size_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    clocks_[first + lane] = all;
    ++clocks_[first + lane][first + lane];
  }
}

void Races::arrive(const void* barrier) {
  if (clocks_.empty()) return;
  Clock& own = clocks_[threadIdx.x];
  learn(barriers_[barrier], own);
  ++own[threadIdx.x];
}

void Races::leave(const void* barrier) {
  if (clocks_.empty()) return;
  learn(clocks_[threadIdx.x], barriers_[barrier]);
}

void record_access(const void* first, std::size_t bytes, Access access) {
  if (has_instrumented_code && machine().inside) block().races.access(first, bytes, access);
}

}  // namespace tilewise::emulation

#if !defined(TILEWISE_SANITIZED)
// The functions that -fsanitize=thread and -fsanitize=alignment make the compiler call.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
namespace {

using tilewise::emulation::Access;
using tilewise::emulation::record_access;

// What -fsanitize=alignment says of an access: its place in the source first.
struct Place {
  const char* file;
  std::uint32_t line;
};

}  // namespace

extern "C" {

void __tsan_init() { tilewise::emulation::has_instrumented_code = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define TILEWISE_ACCESS(BYTES)                                                             \
  void __tsan_read##BYTES(void* at) { record_access(at, BYTES, Access::kRead); }           \
  void __tsan_write##BYTES(void* at) { record_access(at, BYTES, Access::kWrite); }         \
  void __tsan_unaligned_read##BYTES(void* at) { record_access(at, BYTES, Access::kRead); } \
  void __tsan_unaligned_write##BYTES(void* at) { record_access(at, BYTES, Access::kWrite); }
TILEWISE_ACCESS(1)
TILEWISE_ACCESS(2)
TILEWISE_ACCESS(4)
TILEWISE_ACCESS(8)
TILEWISE_ACCESS(16)
#undef TILEWISE_ACCESS

void __tsan_read_range(void* at, std::size_t bytes) { record_access(at, bytes, Access::kRead); }
void __tsan_write_range(void* at, std::size_t bytes) { record_access(at, bytes, Access::kWrite); }

void __ubsan_handle_type_mismatch_v1_abort(void* place, void* at) {
  const auto* const where = static_cast<const Place*>(place);
  if (!tilewise::emulation::machine().inside) std::abort();
  tilewise::emulation::fail("%s:%u: the access at %p is not aligned", where->file, where->line, at);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
#endif
