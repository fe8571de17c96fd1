#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

}  // namespace

Source map_file(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (number < 0) throw FileError(path, "cannot open: " + system_message(errno));
  const Descriptor descriptor{number};

  struct stat status = {};
  if (::fstat(descriptor.number, &status) != 0) {
    throw FileError(path, "cannot read its size: " + system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {{}, nullptr, path};

  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number, 0);
  if (address == MAP_FAILED) {
    throw FileError(path,
                    "cannot map " + std::to_string(size) + " bytes: " + system_message(errno));
  }
  std::shared_ptr<const void> owner(
      address, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  return {{static_cast<const std::byte*>(address), size}, std::move(owner), path};
}

}  // namespace tilewise::io
