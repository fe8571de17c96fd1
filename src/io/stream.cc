#include "io/stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

constexpr std::size_t kReadStep = std::size_t{1} << 30;  // Linux reads under 2 GiB at a time

// Fills `to`, or less at the end of the stream. Returns the number of bytes.
std::size_t read_bytes(int descriptor, const std::string& name, std::span<std::byte> to) {
  std::size_t count = 0;
  while (count < to.size()) {
    const ssize_t more =
        ::read(descriptor, to.data() + count, std::min(to.size() - count, kReadStep));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) throw FileError(name, "cannot read: " + system_message(errno));
    if (more == 0) break;
    count += static_cast<std::size_t>(more);
  }
  return count;
}

// Returns memory that holds nothing yet, so that pages are used when they are written.
std::shared_ptr<std::byte[]> make_buffer(const std::string& name, std::size_t size) {
  try {
    return std::make_shared_for_overwrite<std::byte[]>(size);
  } catch (const std::bad_alloc&) {
    throw FileError(name, "no memory for " + std::to_string(size) + " bytes");
  }
}

}  // namespace

Source read_stream(int descriptor, const std::string& name, std::size_t beginning,
                   const SizeOf& size_of) {
  std::shared_ptr<std::byte[]> bytes = make_buffer(name, beginning);
  std::size_t count = read_bytes(descriptor, name, {bytes.get(), beginning});
  if (count < beginning) return {{bytes.get(), count}, bytes, name};  // all of it
  const std::uint64_t size = size_of({{bytes.get(), count}, bytes, name});
  // The buffer doubles with what has arrived, since the beginning may claim any size.
  while (count <= size) {
    const std::size_t room =
        size - count < count ? static_cast<std::size_t>(size - count) + 1 : count;
    std::shared_ptr<std::byte[]> longer = make_buffer(name, count + room);
    std::memcpy(longer.get(), bytes.get(), count);
    const std::size_t more = read_bytes(descriptor, name, {longer.get() + count, room});
    bytes = std::move(longer);
    count += more;
    if (more < room) break;
  }
  return {{bytes.get(), count}, bytes, name};
}

}  // namespace tilewise::io
