// A file that comes through a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "io/mapped_file.h"

namespace tilewise::io {

// Returns the number of bytes that a file has, by its first ones. Throws FileError if they are not
// those of such a file.
using SizeOf = std::function<std::uint64_t(const Source& beginning)>;

// Reads a descriptor into memory. `beginning` bytes are read first, and what size_of says of them
// bounds the rest: one byte more is read, and nothing after it, so that a reader of the result sees
// that there is more, and a pipe that never ends costs nothing. Memory follows what arrives, at
// most twice as much, never what the beginning claims. Throws FileError.
Source read_stream(int descriptor, const std::string& name, std::size_t beginning,
                   const SizeOf& size_of);

}  // namespace tilewise::io
