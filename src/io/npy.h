// Reads and writes NumPy's .npy files, versions 1 to 3.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "io/array.h"
#include "io/mapped_file.h"
#include "io/output_file.h"

namespace tilewise::io {

// A longer header is refused. NumPy's own need about 100 bytes.
inline constexpr std::size_t kMaxNpyHeader = std::size_t{1} << 16;

// Reads <f2 <f4 <f8, integers of 1 to 8 bytes, |b1, V2 as bf16, V1 as e4m3 and f1 as e5m2. The
// array is a view of the mapped file, or a copy if the file is in Fortran order (which is converted
// to C order) or not aligned for its elements. The reader is strict: little-endian only, no objects
// or structured types, and the data must fill the rest of the file exactly. A hostile file costs
// neither memory nor time before it is refused: the header is bounded, and the size that it states
// is compared with the file's. Throws FileError. Format: numpy.lib.format.
Array read_npy(const std::string& path);

// Reads the same format from bytes in memory, which must outlive the array, or are kept alive by
// their owner.
Array parse_npy(std::span<const std::byte> bytes);
Array parse_npy(const Source& source);

// Reads the same format from a pipe, to its end. `name` is for messages.
Array read_npy_stream(int descriptor, const std::string& name);

// With these first bytes of a file (or all, if it has fewer) the header is complete.
inline constexpr std::size_t kNpyBeginning = kMaxNpyHeader + 12;

// Reads the header from the first bytes of a file of `size` bytes. Throws what parse_npy throws
// where the header is not valid, or does not go with the size.
void check_npy_size(const Source& beginning, std::uint64_t size);

// Writes version 1 in C order, with exactly the bytes of numpy.save; bf16 becomes <V2, which NumPy
// users .view(ml_dtypes.bfloat16). The file appears whole or not at all. Throws FileError.
void write_npy(const std::string& path, const Array& array);

// Writes the same file, which appears at commit(); or into a file that is open.
[[nodiscard]] OutputFile stage_npy(const std::string& path, const Array& array);
void write_npy(OutputFile& file, const Array& array);

// Returns the bytes before the array's own: magic, version, header, padding to a multiple of 64.
std::string npy_preamble(const Array& array);

}  // namespace tilewise::io
