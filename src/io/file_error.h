// The one exception of tilewise::io.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tilewise::io {

// A file that cannot be read or written. what() is one line: "path: what, value, limit".
class FileError : public std::runtime_error {
 public:
  FileError(std::string_view path, std::string_view message);
};

// Text from a file, fit for a one-line message: control characters as \xNN, quotes and backslashes
// escaped, cut after 60 bytes. A hostile name must neither break the line nor reach the terminal as
// an escape sequence.
std::string printable(std::string_view text);

// The system's words for an errno value, with the number.
std::string system_message(int error_number);

}  // namespace tilewise::io
