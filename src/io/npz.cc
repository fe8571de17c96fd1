#include "io/npz.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "io/file_error.h"
#include "io/inflate.h"
#include "io/npy.h"
#include "io/zip_directory.h"

namespace tilewise::io {
namespace {

constexpr std::string_view kSuffix = ".npy";

void check_sum(std::span<const std::byte> bytes, const ZipMember& member, const std::string& name) {
  if (checksum(bytes) != member.checksum) throw FileError(name, "the checksum is wrong");
}

Array read_stored(const Source& source, const ZipMember& member) {
  Array array = parse_npy(source);
  check_sum(source.bytes, member, source.name);
  return array;
}

// source: of the deflated bytes
Array read_deflated(const Source& source, const ZipMember& member) {
  const std::string& name = source.name;
  if (member.size > kMaxFreeSize && member.size / kMaxRatio > member.stored_size) {
    throw FileError(name, "becomes " + std::to_string(member.size) + " bytes from " +
                              std::to_string(member.stored_size) + ", more than " +
                              std::to_string(kMaxRatio) +
                              " times as many; save it without "
                              "compression");
  }
  Inflater inflater(source.bytes);
  const auto refuse_length = [&] {
    throw FileError(name, "is not a deflated stream of " + std::to_string(member.size) + " bytes");
  };
  std::vector<std::byte> beginning(std::min<std::uint64_t>(member.size, kNpyBeginning));
  if (inflater.read(beginning) != beginning.size()) refuse_length();
  check_npy_size({beginning, nullptr, name}, member.size);
  const auto whole = std::make_shared_for_overwrite<std::byte[]>(member.size);
  const std::span<std::byte> bytes = {whole.get(), member.size};
  std::copy(beginning.begin(), beginning.end(), bytes.begin());
  const std::span<std::byte> rest = bytes.subspan(beginning.size());
  if (inflater.read(rest) != rest.size() || !inflater.ends_here()) refuse_length();
  check_sum(bytes, member, name);
  return parse_npy({bytes, whole, name});
}

Array read_member(const Source& source, const ZipMember& member) {
  const Source own = {source.bytes.subspan(member.begin, member.stored_size), source.owner,
                      source.name + ": member '" + printable(member.name) + "'"};
  try {
    return member.deflated ? read_deflated(own, member) : read_stored(own, member);
  } catch (const std::bad_alloc&) {
    throw FileError(own.name, "no memory for " + std::to_string(member.size) + " bytes");
  }
}

// Calls write(bytes) for the parts of the file, in their order.
template <class Write>
void write_parts(const TensorFile& file, const std::string& path, const Write& write) {
  if (!file.metadata.empty()) throw FileError(path, "an .npz file holds no metadata");
  if (file.tensors.size() > kMaxZipMembers) {
    throw FileError(path, "is to hold " + std::to_string(file.tensors.size()) +
                              " tensors, at most " + std::to_string(kMaxZipMembers) + " are read");
  }
  std::vector<ZipMember> members;
  std::uint64_t offset = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    write(bytes);
    offset += bytes.size();
  };
  const auto put_text = [&](std::string_view text) { put(std::as_bytes(std::span(text))); };
  for (const NamedTensor& tensor : file.tensors) {
    check_complete(tensor.array, path);
    const std::string preamble = npy_preamble(tensor.array);
    const std::span<const std::byte> head = std::as_bytes(std::span(preamble));
    ZipMember member;
    member.name = tensor.name + std::string(kSuffix);
    member.checksum = checksum(tensor.array.bytes, checksum(head));
    member.size = member.stored_size = head.size() + tensor.array.bytes.size();
    put_text(zip_local_header(member));
    member.begin = offset;
    put(head);
    put(tensor.array.bytes);
    members.push_back(std::move(member));
  }
  put_text(zip_directory(members, offset));
}

}  // namespace

TensorFile read_npz(const std::string& path, const Wanted& wanted) {
  return parse_npz(map_file(path), wanted);
}

TensorFile parse_npz(const Source& source, const Wanted& wanted) {
  TensorFile file;
  for (const ZipMember& member : read_zip_directory(source)) {
    const std::string_view name = member.name;
    if (!name.ends_with(kSuffix)) {
      throw FileError(source.name,
                      "member '" + printable(name) + "': is not an array, whose name ends in .npy");
    }
    const std::string_view own = name.substr(0, name.size() - kSuffix.size());
    if (wanted(own)) file.tensors.push_back({std::string(own), read_member(source, member)});
  }
  return file;
}

OutputFile stage_npz(const std::string& path, const TensorFile& file) {
  OutputFile output(path);
  write_parts(file, path, [&](std::span<const std::byte> bytes) { output.write(bytes); });
  return output;
}

std::string format_npz(const TensorFile& file, const std::string& path) {
  std::string text;
  write_parts(file, path, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

}  // namespace tilewise::io
