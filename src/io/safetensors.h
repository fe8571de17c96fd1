// Reads and writes Hugging Face's .safetensors files: named tensors in one file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/mapped_file.h"
#include "io/output_file.h"
#include "io/tensor_file.h"

namespace tilewise::io {

// A longer header is refused, so that every header is read or refused within 10 ms; about 3000
// tensors fit. The format itself allows 100 MB.
inline constexpr std::size_t kMaxSafetensorsHeader = std::size_t{1} << 18;

// Reads F64 F32 F16 BF16, F8_E4M3, F8_E5M2, I64 to I8, U64 to U8 and BOOL. Arrays are views of the
// mapped file; one that is not aligned for its elements is copied. The reader is strict: no
// duplicate names, no unknown fields or types, no gaps or overlaps, and the data must end with the
// file. Header and sizes are checked before anything is allocated for them. Throws FileError.
// Format: https://github.com/huggingface/safetensors, section "Format".
TensorFile read_safetensors(const std::string& path);

// Reads the same format from bytes in memory, which must outlive the arrays, or are kept alive by
// their owner.
TensorFile parse_safetensors(std::span<const std::byte> bytes);
TensorFile parse_safetensors(const Source& source);

// With these first bytes of a file (or all, if it has fewer) the header is complete, and
// safetensors_size() returns the size of the file that they begin.
inline constexpr std::size_t kSafetensorsBeginning = kMaxSafetensorsHeader + 8;
std::uint64_t safetensors_size(const Source& beginning);

// Writes exactly the bytes of the safetensors package: tensors of wider types first, by name among
// equals, so that all are aligned; metadata in the order given. The file appears whole or not at
// all. Throws FileError.
void write_safetensors(const std::string& path, const TensorFile& file);

// Writes the same file, which appears at commit(); or into a file that is open. `path` is for
// messages.
[[nodiscard]] OutputFile stage_safetensors(const std::string& path, const TensorFile& file);
void write_safetensors(OutputFile& output, const std::string& path, const TensorFile& file);

// Returns the whole file in memory.
std::string format_safetensors(const TensorFile& file);

}  // namespace tilewise::io
