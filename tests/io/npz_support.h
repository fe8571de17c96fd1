// Zip files for the tests of .npz, valid ones and others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/array.h"

namespace tilewise::io {

// A member, as its headers say it is. A test changes what is to be wrong.
struct ZipPart {
  std::string name;
  std::string data;  // as in the file
  std::uint64_t size = 0;
  std::uint64_t stored_size = 0;
  std::uint32_t checksum = 0;
  std::uint64_t method = 0;
  std::uint64_t flags = 0;
  std::int64_t begin = -1;  // of the local header, by the directory; -1: where it is
  std::string local_name;   // "": name
  std::string extra;        // of the directory
  bool wide = false;        // size, stored size and offset are in the field of zip64
};

// Members with the content of a file.
ZipPart stored(const std::string& name, const std::string& content);
ZipPart deflated(const std::string& name, const std::string& content);

// wide: the end record is one of zip64
std::string zip_file(const std::vector<ZipPart>& parts, bool wide = false);

// The .npy file of an array.
std::string npy_bytes(const Array& array);

void append_bytes(const std::string& path, const std::string& bytes);

}  // namespace tilewise::io
