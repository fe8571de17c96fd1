// Reads and writes NumPy's .npz files: a zip file whose members are .npy files.
#pragma once

#include <cstdint>
#include <string>

#include "io/mapped_file.h"
#include "io/output_file.h"
#include "io/tensor_file.h"

namespace tilewise::io {

// A compressed member of more than kMaxFreeSize bytes must not become more than kMaxRatio times as
// large as it is: a small file could fill the memory (a zip bomb). Constant arrays, which
// shrink further, can be saved without compression.
inline constexpr std::uint64_t kMaxFreeSize = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxRatio = 128;

// Reads the members that are wanted, by their names without ".npy": stored ones are views of the
// mapped file (or copies, if not aligned for their elements), deflated ones are inflated. The
// reader is strict: no other members, methods or encryption, no comment, nothing after the end
// record, no name twice, no members that share bytes, and every checksum must be right. The
// directory, the sizes and the npy header are checked before a member's data is looked at. Throws
// FileError; always if the build has no zlib. Formats: numpy.lib.format, and APPNOTE.TXT of PKWARE
// with zip64.
TensorFile read_npz(const std::string& path, const Wanted& wanted);
TensorFile parse_npz(const Source& source, const Wanted& wanted);

// Writes stored members, as numpy.savez does; metadata is refused. The file appears at commit().
// Throws FileError.
[[nodiscard]] OutputFile stage_npz(const std::string& path, const TensorFile& file);

// Returns the whole file in memory. `path` is for messages.
std::string format_npz(const TensorFile& file, const std::string& path);

}  // namespace tilewise::io
