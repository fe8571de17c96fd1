// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tilewise::io {

// Bytes to read from, the object that keeps them alive, and their name for messages.
struct Source {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  std::string name;
};

// Maps a regular file; pages are read when touched. The mapping is private and read-only and lives
// as long as its owner. If another program shortens the file in the meantime, reading causes
// SIGBUS, as with every mapping: replace files by rename instead, as the writers here do. Throws
// FileError.
Source map_file(const std::string& path);

}  // namespace tilewise::io
