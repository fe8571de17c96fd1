// The .npz functions of a build without zlib.
#include "io/file_error.h"
#include "io/npz.h"

namespace tilewise::io {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw FileError(path, "is an .npz file, and zlib was not found when this program was built");
}

}  // namespace

TensorFile read_npz(const std::string& path, const Wanted&) { refuse(path); }
TensorFile parse_npz(const Source& source, const Wanted&) { refuse(source.name); }
OutputFile stage_npz(const std::string& path, const TensorFile&) { refuse(path); }
std::string format_npz(const TensorFile&, const std::string& path) { refuse(path); }

}  // namespace tilewise::io
