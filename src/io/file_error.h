// The only exception of tilewise::io.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tilewise::io {

// A file that cannot be read or written. what() is one line: "path: problem, value, limit".
class FileError : public std::runtime_error {
 public:
  FileError(std::string_view path, std::string_view message);
};

// Makes text from a file fit for a one-line message: control characters become \xNN, quotes and
// backslashes are escaped, and the text is cut after 60 bytes. A hostile name must neither break
// the line nor reach the terminal as an escape sequence.
std::string printable(std::string_view text);

// Returns the system's message for an errno value, with the number.
std::string system_message(int error_number);

}  // namespace tilewise::io
