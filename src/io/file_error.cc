#include "io/file_error.h"

#include <system_error>

namespace tilewise::io {
namespace {

constexpr std::size_t kLongestQuote = 60;  // bytes of a file's text that a message quotes

std::string escaped(std::string_view text, std::string_view also_escaped) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string result;
  for (const char character : text) {
    const auto code = static_cast<unsigned char>(character);
    if (code < 0x20 || code == 0x7f) {
      result += "\\x";
      result += kHexDigits[code >> 4];
      result += kHexDigits[code & 15];
    } else {
      if (also_escaped.find(character) != std::string_view::npos) result += '\\';
      result += character;
    }
  }
  return result;
}

}  // namespace

FileError::FileError(std::string_view path, std::string_view message)
    : std::runtime_error(escaped(path, "") + ": " + std::string(message)) {}

std::string printable(std::string_view text) {
  if (text.size() <= kLongestQuote) return escaped(text, "'\\");
  return escaped(text.substr(0, kLongestQuote), "'\\") + "...";
}

std::string system_message(int error_number) {
  return std::generic_category().message(error_number) + " (errno " + std::to_string(error_number) +
         ")";
}

}  // namespace tilewise::io
