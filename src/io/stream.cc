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
std::shared_ptr<std::byte[]> make_buffer(const std::string& name, std::uint64_t size) {
  try {
    return std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(size));
  } catch (const std::bad_alloc&) {
    throw FileError(name, "no memory for " + std::to_string(size) + " bytes");
  }
}

}  // namespace

Source read_stream(int descriptor, const std::string& name, std::size_t beginning,
                   const SizeOf& size_of) {
  std::shared_ptr<std::byte[]> first = make_buffer(name, beginning);
  const std::size_t count = read_bytes(descriptor, name, {first.get(), beginning});
  Source source = {{first.get(), count}, first, name};
  if (count < beginning) return source;  // all of it
  const std::uint64_t size = size_of(source);
  if (size < count) return source;  // there is more than there should be
  std::shared_ptr<std::byte[]> all = make_buffer(name, size + 1);
  std::memcpy(all.get(), first.get(), count);
  const std::size_t rest = static_cast<std::size_t>(size) + 1 - count;
  const std::size_t total = count + read_bytes(descriptor, name, {all.get() + count, rest});
  return {{all.get(), total}, std::move(all), name};
}

}  // namespace tilewise::io
