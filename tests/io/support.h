// Shared by the tests of tilewise::io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.h"

namespace tilewise::io {

// A folder of one test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const;  // the names of everything in it, sorted

 private:
  std::string path_;
};

void write_bytes(const std::string& path, std::string_view bytes);
std::string read_bytes(const std::string& path);

std::span<const std::byte> as_bytes(std::string_view text);
std::string little_endian(std::uint64_t value, int bytes);

// Returns a whole file with the given header text.
std::string npy_file(std::string_view header, std::size_t data_size, int version = 1);
std::string safetensors_file(std::string_view header, std::size_t data_size);

// Returns bytes that repeat every 251: neighbours differ, and so do rows of any usual length.
Array pattern_array(ElementType type, std::vector<std::int64_t> shape);

bool same_array(const Array& a, const Array& b);

// Returns shapes for round trips: rank 0, size 0 in every position, size 1, up to the highest rank.
std::vector<std::vector<std::int64_t>> interesting_shapes();

// Returns the message of the FileError that `action` throws; "" if it throws none.
std::string file_error(const std::function<void()>& action);

// Runs `body` in a forked child and returns the status of waitpid.
int run_in_child(const std::function<void()>& body);

struct HostileFile {
  std::string name;
  std::string bytes;
  std::string message;  // a part that the error must contain
};

// Reads each file in a child process, from the disk. Checks the message, that it is one line that
// begins with the path, and the costs: 10 ms of processor time, 64 MB of memory touched.
void expect_refused(const std::vector<HostileFile>& files,
                    const std::function<void(const std::string&)>& read);

}  // namespace tilewise::io
