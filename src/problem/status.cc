#include "problem/status.h"

#include <cstdarg>
#include <cstdio>

namespace tilewise::problem {
namespace {

constexpr int kMessageSize = 512;
thread_local char thread_message[kMessageSize] = "";

}  // namespace

Status fail(Status code, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(thread_message, kMessageSize, format, arguments);
  va_end(arguments);
  return code;
}

const char* message() { return thread_message; }

void clear_message() { thread_message[0] = '\0'; }

}  // namespace tilewise::problem
