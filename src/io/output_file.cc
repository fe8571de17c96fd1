#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <utility>

#include "io/file_error.h"
#include "io/temporaries.h"

namespace tilewise::io {
namespace {

constexpr int kNameTries = 16;
constexpr std::size_t kWriteStep = std::size_t{1} << 30;  // Linux writes under 2 GiB at a time

// The name does not contain the destination's: a name near the limit of 255 bytes must still work.
std::string temporary_path(const std::string& path) {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  char name[64];
  std::snprintf(name, sizeof(name), ".tilewise-%ld-%016llx.tmp", static_cast<long>(::getpid()),
                static_cast<unsigned long long>(generator()));
  return folder + name;
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) throw FileError(path_, "the path is empty");
  // A rename would replace a device such as /dev/null by a file.
  struct stat status = {};
  if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw FileError(path_, "cannot be replaced: it is not a regular file");
  }
  create();
}

OutputFile OutputFile::standard_output() {
  OutputFile file;
  file.path_ = "standard output";
  file.descriptor_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (file.descriptor_ < 0) file.fail("cannot write");
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      slot_(std::exchange(other.slot_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (slot_ < 0) return;
  ::unlink(temporary_.c_str());
  forget_temporary(slot_);
}

void OutputFile::create() {
  for (int attempt = 0; attempt < kNameTries; ++attempt) {
    temporary_ = temporary_path(path_);
    int slot = -1;
    descriptor_ = create_temporary(
        temporary_,
        [this] {
          return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        },
        slot);
    if (descriptor_ >= 0) {
      slot_ = slot;
      return;
    }
    if (errno != EEXIST) break;
  }
  fail("cannot create a temporary file in its folder");
}

void OutputFile::fail(const std::string& what) const {
  const int error_number = errno;
  wait_if_ending();
  throw FileError(path_, what + ": " + system_message(error_number));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kWriteStep));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write " + std::to_string(bytes.size()) + " bytes");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void OutputFile::commit() {
  // Some file systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot complete writing");
  if (slot_ < 0) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("cannot rename the temporary file to it");
  forget_temporary(std::exchange(slot_, -1));
}

}  // namespace tilewise::io
