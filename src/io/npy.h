// NumPy's .npy files, versions 1 to 3.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "io/array.h"
#include "io/output_file.h"

namespace tilewise::io {

// A longer header is refused. numpy's own need about 100 bytes.
inline constexpr std::size_t kMaxNpyHeader = std::size_t{1} << 16;

// Reads <f2 <f4 <f8, integers of 1 to 8 bytes, |b1, and V2 as bf16. The array is a view of the
// mapped file; it is a copy where the file is in Fortran order (then C order is made of it) or not
// aligned for its elements. Strict: little-endian only, no objects or structured types, and the
// data must fill the rest of the file exactly. A hostile file costs no memory and no time before it
// is refused: the header is bounded, and the size that it states is compared with the file's.
// Throws FileError. Format: numpy.lib.format.
Array read_npy(const std::string& path);

// The same for bytes in memory, which must outlive the array.
Array parse_npy(std::span<const std::byte> bytes);

// Writes version 1, C order, the very bytes of numpy.save; bf16 as <V2, which numpy users
// .view(ml_dtypes.bfloat16). The file appears whole or not at all. Throws FileError.
void write_npy(const std::string& path, const Array& array);

// The same, to appear at commit().
[[nodiscard]] OutputFile stage_npy(const std::string& path, const Array& array);

// The bytes before the array's own: magic, version, header, padding to a multiple of 64.
std::string npy_preamble(const Array& array);

}  // namespace tilewise::io
