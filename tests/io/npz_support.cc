#include "npz_support.h"

#include <zlib.h>

#include <fstream>
#include <stdexcept>

#include "io/inflate.h"
#include "io/npy.h"
#include "support.h"

namespace tilewise::io {
namespace {

// Raw deflate, as in zip files.
std::string deflate_raw(const std::string& content) {
  z_stream state = {};
  if (::deflateInit2(&state, Z_BEST_COMPRESSION, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("zlib: no stream");
  std::string result(::deflateBound(&state, content.size()), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  state.avail_in = static_cast<uInt>(content.size());
  state.next_out = reinterpret_cast<Bytef*>(result.data());
  state.avail_out = static_cast<uInt>(result.size());
  const int status = ::deflate(&state, Z_FINISH);
  result.resize(result.size() - state.avail_out);
  ::deflateEnd(&state);
  if (status != Z_STREAM_END) throw std::runtime_error("zlib: the stream does not end");
  return result;
}

std::string sizes_of(const ZipPart& part, bool wide) {
  const std::string none(4, '\xff');
  return little_endian(part.checksum, 4) + (wide ? none : little_endian(part.stored_size, 4)) +
         (wide ? none : little_endian(part.size, 4));
}

std::string common_of(const ZipPart& part) {
  return little_endian(20, 2) + little_endian(part.flags, 2) + little_endian(part.method, 2) +
         std::string(4, '\0');
}

}  // namespace

ZipPart stored(const std::string& name, const std::string& content) {
  ZipPart part;
  part.name = name;
  part.data = content;
  part.size = part.stored_size = content.size();
  part.checksum = checksum(as_bytes(content));
  return part;
}

ZipPart deflated(const std::string& name, const std::string& content) {
  ZipPart part = stored(name, content);
  part.method = 8;
  part.data = deflate_raw(content);
  part.stored_size = part.data.size();
  return part;
}

std::string zip_file(const std::vector<ZipPart>& parts, bool wide) {
  std::string file;
  std::string directory;
  for (const ZipPart& part : parts) {
    const std::uint64_t begin =
        part.begin < 0 ? file.size() : static_cast<std::uint64_t>(part.begin);
    const std::string& local = part.local_name.empty() ? part.name : part.local_name;
    file += "PK\3\4" + common_of(part) + sizes_of(part, false) + little_endian(local.size(), 2) +
            std::string(2, '\0') + local + part.data;
    std::string extra = part.extra;
    if (part.wide) {
      extra = little_endian(1, 2) + little_endian(24, 2) + little_endian(part.size, 8) +
              little_endian(part.stored_size, 8) + little_endian(begin, 8);
    }
    directory += "PK\1\2" + little_endian(20, 2) + common_of(part) + sizes_of(part, part.wide) +
                 little_endian(part.name.size(), 2) + little_endian(extra.size(), 2) +
                 std::string(10, '\0') +
                 (part.wide ? std::string(4, '\xff') : little_endian(begin, 4)) + part.name + extra;
  }
  const std::size_t at = file.size();
  file += directory;
  const std::string count = little_endian(parts.size(), wide ? 8 : 2);
  const std::string end = std::string("PK\5\6") + std::string(4, '\0');
  if (!wide) {
    return file + end + count + count + little_endian(directory.size(), 4) + little_endian(at, 4) +
           std::string(2, '\0');
  }
  const std::size_t record = file.size();
  return file + "PK\6\6" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
         std::string(8, '\0') + count + count + little_endian(directory.size(), 8) +
         little_endian(at, 8) + "PK\6\7" + std::string(4, '\0') + little_endian(record, 8) +
         little_endian(1, 4) + end + std::string(12, '\xff') + std::string(2, '\0');
}

std::string npy_bytes(const Array& array) {
  std::string bytes = npy_preamble(array);
  bytes.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return bytes;
}

void append_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace tilewise::io
