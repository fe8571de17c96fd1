// Reads and writes Hugging Face's .safetensors files: named tensors in one file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/array.h"
#include "io/output_file.h"

namespace tilewise::io {

// A longer header is refused, so that every header is read or refused within 10 ms; about 3000
// tensors fit. The format itself allows 100 MB.
inline constexpr std::size_t kMaxSafetensorsHeader = std::size_t{1} << 18;

struct NamedTensor {
  std::string name;
  Array array;
};

struct TensorFile {
  std::vector<NamedTensor> tensors;                           // in the order of the header
  std::vector<std::pair<std::string, std::string>> metadata;  // in the order of the header

  // Returns nullptr if no tensor has that name.
  const Array* find(std::string_view name) const;
};

// Reads F64 F32 F16 BF16, I64 to I8, U64 to U8 and BOOL. Arrays are views of the mapped file; one
// that is not aligned for its elements is copied. The reader is strict: no duplicate names, no
// unknown fields or types, no gaps or overlaps, and the data must end with the file. Header and
// sizes are checked before anything is allocated for them. Throws FileError. Format:
// https://github.com/huggingface/safetensors, section "Format".
TensorFile read_safetensors(const std::string& path);

// Reads the same format from bytes in memory, which must outlive the arrays.
TensorFile parse_safetensors(std::span<const std::byte> bytes);

// Writes exactly the bytes of the safetensors package: tensors of wider types first, by name among
// equals, so that all are aligned; metadata in the order given. The file appears whole or not at
// all. Throws FileError.
void write_safetensors(const std::string& path, const TensorFile& file);

// Writes the same file, which appears at commit().
[[nodiscard]] OutputFile stage_safetensors(const std::string& path, const TensorFile& file);

// Returns the whole file in memory.
std::string format_safetensors(const TensorFile& file);

}  // namespace tilewise::io
