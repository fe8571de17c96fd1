// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tilewise::io {

// Writes into a temporary in the directory of `path`; commit() renames it to `path`, replacing a
// regular file that is there. Without commit() the destructor removes it, and nothing has changed.
// To write several files or none, write them all, then commit them all.
// remove_temporaries_on_signal handles Ctrl-C. Every member throws FileError.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  // Writes to the standard output at once; commit() changes nothing.
  static OutputFile standard_output();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  OutputFile() = default;
  [[noreturn]] void fail(const std::string& what) const;
  void create();

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;  // closed at the end; of a temporary or a copy of the standard output
  int slot_ = -1;        // index in the list of temporaries; -1 once committed or moved from
};

}  // namespace tilewise::io
