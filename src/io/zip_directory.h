// The directory of a zip file: which members it has, and where they are. Used by npz.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/mapped_file.h"

namespace tilewise::io {

// A longer directory and more members are refused, so that every directory is read or refused
// within 10 ms.
inline constexpr std::size_t kMaxZipDirectory = std::size_t{1} << 18;
inline constexpr std::size_t kMaxZipMembers = 1024;

struct ZipMember {
  std::string name;
  bool deflated = false;  // else stored
  std::uint32_t checksum = 0;
  std::uint64_t begin = 0;        // of its bytes in the file
  std::uint64_t stored_size = 0;  // of its bytes in the file
  std::uint64_t size = 0;         // once inflated
};

// Returns the members in the order of the directory, all of whose bytes lie inside the file, apart
// from one another. Throws FileError.
std::vector<ZipMember> read_zip_directory(const Source& source);

// Returns what is written before a stored member's bytes, and the directory with the end record
// that follows the last one, at `offset`.
std::string zip_local_header(const ZipMember& member);
std::string zip_directory(const std::vector<ZipMember>& members, std::uint64_t offset);

}  // namespace tilewise::io
