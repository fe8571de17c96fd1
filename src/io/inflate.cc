#include "io/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <new>

namespace tilewise::io {
namespace {

constexpr std::size_t kStep = std::size_t{1} << 30;  // zlib counts bytes in 32 bits
constexpr int kRawDeflate = -15;                     // neither header nor checksum, any window

}  // namespace

std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t before) {
  uLong crc = before;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kStep);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(count));
    bytes = bytes.subspan(count);
  }
  return static_cast<std::uint32_t>(crc);
}

struct Inflater::Stream {
  z_stream state = {};
};

Inflater::Inflater(std::span<const std::byte> deflated)
    : stream_(std::make_unique<Stream>()), left_(deflated) {
  if (::inflateInit2(&stream_->state, kRawDeflate) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { ::inflateEnd(&stream_->state); }

std::size_t Inflater::read(std::span<std::byte> to) {
  z_stream& state = stream_->state;
  std::size_t count = 0;
  while (!ended_ && count < to.size()) {
    if (state.avail_in == 0) {
      const std::size_t given = std::min(left_.size(), kStep);
      state.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(left_.data()));
      state.avail_in = static_cast<uInt>(given);
      left_ = left_.subspan(given);
    }
    const std::size_t room = std::min(to.size() - count, kStep);
    state.next_out = reinterpret_cast<Bytef*>(to.data() + count);
    state.avail_out = static_cast<uInt>(room);
    const int status = ::inflate(&state, Z_NO_FLUSH);
    count += room - state.avail_out;
    ended_ = status == Z_STREAM_END;
    if (status != Z_OK && !ended_) break;  // not valid, or cut short
  }
  return count;
}

bool Inflater::ends_here() {
  std::byte more;
  if (!ended_ && read({&more, 1}) != 0) return false;
  return ended_ && stream_->state.avail_in == 0 && left_.empty();
}

}  // namespace tilewise::io
