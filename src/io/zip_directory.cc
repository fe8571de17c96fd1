#include "io/zip_directory.h"

#include <algorithm>
#include <string_view>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;    // "PK\3\4"
constexpr std::uint32_t kEntrySignature = 0x02014b50;    // "PK\1\2", of the directory
constexpr std::uint32_t kEndSignature = 0x06054b50;      // "PK\5\6"
constexpr std::uint32_t kWideEndSignature = 0x06064b50;  // "PK\6\6", of zip64
constexpr std::uint32_t kWideLocatorSignature = 0x07064b50;
constexpr std::size_t kLocalSize = 30;
constexpr std::size_t kEntrySize = 46;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kWideEndSize = 56;
constexpr std::size_t kWideLocatorSize = 20;
constexpr std::size_t kWideField = 1;  // the number of the extra field of zip64
constexpr std::uint64_t kNarrow16 = 0xffff;
constexpr std::uint64_t kNarrow32 = 0xffffffff;  // the number is in the zip64 field
constexpr std::uint64_t kStored = 0;
constexpr std::uint64_t kDeflated = 8;
constexpr std::uint64_t kEncrypted = 1;
// Levels of compression, sizes after the data (the directory has them too), and names in UTF-8.
constexpr std::uint64_t kKnownFlags = 0x080e;
constexpr std::uint64_t kUtf8Names = 0x0800;
constexpr std::uint64_t kWideVersion = 45;
constexpr std::uint64_t kDate1980 = 0x21;  // January 1st, as in files of numpy.savez

// Takes numbers and texts from the front of bytes of which there are enough.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value |= std::to_integer<std::uint64_t>(bytes_[i]) << (8 * i);
    bytes_ = bytes_.subspan(width);
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class DirectoryReader {
 public:
  explicit DirectoryReader(const Source& source) : source_(source), bytes_(source.bytes) {}

  std::vector<ZipMember> read() {
    find_end();
    if (size_ > kMaxZipDirectory || count_ > kMaxZipMembers) {
      fail("the zip directory has " + std::to_string(count_) + " members and " +
           std::to_string(size_) + " bytes, at most " + std::to_string(kMaxZipMembers) + " and " +
           std::to_string(kMaxZipDirectory) + " are read");
    }
    if (begin_ > end_ || end_ - begin_ != size_)
      fail("the zip directory does not lie between the members and the end record");
    Fields fields(bytes_.subspan(begin_, size_));
    std::vector<ZipMember> members;
    for (std::uint64_t i = 0; i < count_; ++i) members.push_back(read_entry(fields));
    if (fields.left() != 0) fail("the zip directory has bytes after its last member");
    check_apart(members);
    return members;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw FileError(source_.name, what); }
  [[noreturn]] void fail(std::string_view member, const std::string& what) const {
    fail("member '" + printable(member) + "': " + what);
  }

  // Finds the directory by the end record, or by that of zip64 before it.
  void find_end() {
    if (bytes_.size() < kEndSize) fail("is not an .npz file: the end of the zip file is missing");
    end_ = bytes_.size() - kEndSize;
    Fields fields(bytes_.subspan(end_));
    if (fields.number(4) != kEndSignature)
      fail("is not an .npz file: the end of the zip file is missing, or has a comment");
    const std::uint64_t disk = fields.number(2);
    const std::uint64_t first_disk = fields.number(2);
    const std::uint64_t here = fields.number(2);
    count_ = fields.number(2);
    size_ = fields.number(4);
    begin_ = fields.number(4);
    if (fields.number(2) != 0) fail("the zip file has a comment");
    if (disk != 0 || first_disk != 0 || here != count_) fail("the zip file has several parts");
    if (count_ == kNarrow16 || size_ == kNarrow32 || begin_ == kNarrow32) find_wide_end();
  }

  void find_wide_end() {
    if (end_ < kWideLocatorSize + kWideEndSize) fail("the zip64 end record is missing");
    const std::size_t record = end_ - kWideLocatorSize - kWideEndSize;
    Fields fields(bytes_.subspan(record));
    const bool is_record = fields.number(4) == kWideEndSignature && fields.number(8) == 44;
    fields.take(2 + 2);  // versions
    const bool is_whole = fields.number(4) == 0 && fields.number(4) == 0;
    const std::uint64_t here = fields.number(8);
    count_ = fields.number(8);
    size_ = fields.number(8);
    begin_ = fields.number(8);
    const bool is_locator = fields.number(4) == kWideLocatorSignature && fields.number(4) == 0 &&
                            fields.number(8) == record;
    if (!is_record || !is_whole || here != count_ || !is_locator)
      fail("the zip64 end record is not valid");
    end_ = record;
  }

  ZipMember read_entry(Fields& fields) const {
    if (fields.left() < kEntrySize || fields.number(4) != kEntrySignature)
      fail("the zip directory is cut short");
    fields.take(2 + 2);  // versions
    ZipMember member;
    const std::uint64_t flags = fields.number(2);
    const std::uint64_t method = fields.number(2);
    fields.take(2 + 2);  // time and date
    member.checksum = static_cast<std::uint32_t>(fields.number(4));
    member.stored_size = fields.number(4);
    member.size = fields.number(4);
    const std::size_t name_size = fields.number(2);
    const std::size_t extra_size = fields.number(2);
    const std::size_t comment_size = fields.number(2);
    const std::uint64_t disk = fields.number(2);
    fields.take(2 + 4);  // attributes
    member.begin = fields.number(4);
    if (fields.left() < name_size + extra_size + comment_size)
      fail("the zip directory is cut short");
    member.name = text_of(fields.take(name_size));
    read_wide(fields.take(extra_size), member);
    fields.take(comment_size);
    if ((flags & kEncrypted) != 0) fail(member.name, "is encrypted");
    if ((flags & ~kKnownFlags) != 0 || disk != 0)
      fail(member.name, "flags are " + std::to_string(flags) + ", which are not read");
    if (method != kStored && method != kDeflated) {
      fail(member.name, "compression method is " + std::to_string(method) +
                            ", expected 0 (stored) or 8 (deflated)");
    }
    member.deflated = method == kDeflated;
    if (!member.deflated && member.stored_size != member.size) {
      fail(member.name, "is stored with " + std::to_string(member.stored_size) +
                            " bytes, but has " + std::to_string(member.size));
    }
    find_data(member);
    return member;
  }

  // Reads the numbers that did not fit in 32 bits, in the order of the directory.
  void read_wide(std::span<const std::byte> extra, ZipMember& member) const {
    Fields fields(extra);
    while (fields.left() >= 4) {
      const std::uint64_t number = fields.number(2);
      const std::size_t size = fields.number(2);
      if (fields.left() < size) fail(member.name, "an extra field is cut short");
      Fields wide(fields.take(size));
      if (number != kWideField) continue;
      for (std::uint64_t* value : {&member.size, &member.stored_size, &member.begin}) {
        if (*value != kNarrow32) continue;
        if (wide.left() < 8) fail(member.name, "the zip64 field is cut short");
        *value = wide.number(8);
      }
    }
  }

  // Reads the header before the member's data; `begin` is that of the header, and becomes that of
  // the data. Its sizes and checksum may be absent, so those of the directory count.
  void find_data(ZipMember& member) const {
    const std::uint64_t header = member.begin;
    if (header > begin_ || begin_ - header < kLocalSize)
      fail(member.name, "begins at byte " + std::to_string(header) + ", after the last one");
    Fields fields(bytes_.subspan(header, begin_ - header));
    const bool is_header = fields.number(4) == kLocalSignature;
    fields.take(2 + 2);  // version, flags
    const std::uint64_t method = fields.number(2);
    fields.take(2 + 2 + 4 + 4 + 4);  // time, date, checksum, sizes
    const std::size_t name_size = fields.number(2);
    const std::size_t extra_size = fields.number(2);
    if (!is_header || method != (member.deflated ? kDeflated : kStored) ||
        fields.left() < name_size + extra_size || text_of(fields.take(name_size)) != member.name) {
      fail(member.name, "its header is not that of the zip directory");
    }
    fields.take(extra_size);
    if (fields.left() < member.stored_size) {
      fail(member.name, "has " + std::to_string(member.stored_size) + " bytes, the file has " +
                            std::to_string(fields.left()) + " left");
    }
    member.begin = begin_ - fields.left();
  }

  // Members that share bytes are the way to a zip bomb of any size.
  void check_apart(const std::vector<ZipMember>& members) const {
    std::vector<const ZipMember*> order;
    order.reserve(members.size());
    for (const ZipMember& member : members) order.push_back(&member);
    std::sort(order.begin(), order.end(),
              [](const ZipMember* a, const ZipMember* b) { return a->name < b->name; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->name == order[i]->name) fail(order[i]->name, "occurs twice");
    }
    std::sort(order.begin(), order.end(),
              [](const ZipMember* a, const ZipMember* b) { return a->begin < b->begin; });
    std::uint64_t end = 0;
    for (const ZipMember* member : order) {
      if (member->begin - end < kLocalSize + member->name.size() || member->begin < end)
        fail(member->name, "shares bytes with another member");
      end = member->begin + member->stored_size;
    }
  }

  const Source& source_;
  std::span<const std::byte> bytes_;
  std::uint64_t count_ = 0;  // of the members
  std::uint64_t size_ = 0;   // of the directory
  std::uint64_t begin_ = 0;  // of the directory
  std::uint64_t end_ = 0;    // where the directory must end
};

void append(std::string& text, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

std::uint64_t narrow(std::uint64_t value) { return std::min(value, kNarrow32); }

// The fields that a header and an entry of the directory have in common.
void append_common(std::string& text, const ZipMember& member, bool wide, std::size_t extra) {
  append(text, kWideVersion, 2);
  append(text, kUtf8Names, 2);
  append(text, kStored, 2);
  append(text, 0, 2);  // time
  append(text, kDate1980, 2);
  append(text, member.checksum, 4);
  for (const std::uint64_t size : {member.stored_size, member.size})
    append(text, wide ? kNarrow32 : narrow(size), 4);
  append(text, member.name.size(), 2);
  append(text, extra, 2);
}

}  // namespace

std::vector<ZipMember> read_zip_directory(const Source& source) {
  return DirectoryReader(source).read();
}

// The sizes are always those of zip64, as in files of numpy.savez.
std::string zip_local_header(const ZipMember& member) {
  constexpr std::size_t kExtra = 4 + 16;
  std::string text;
  append(text, kLocalSignature, 4);
  append_common(text, member, true, kExtra);
  text += member.name;
  append(text, kWideField, 2);
  append(text, kExtra - 4, 2);
  append(text, member.size, 8);
  append(text, member.stored_size, 8);
  return text;
}

std::string zip_directory(const std::vector<ZipMember>& members, std::uint64_t offset) {
  std::string text;
  for (const ZipMember& member : members) {
    const std::uint64_t header = member.begin - zip_local_header(member).size();
    std::string extra;
    for (const std::uint64_t value : {member.size, member.stored_size, header}) {
      if (value >= kNarrow32) append(extra, value, 8);
    }
    append(text, kEntrySignature, 4);
    append(text, kWideVersion, 2);
    append_common(text, member, false, extra.empty() ? 0 : 4 + extra.size());
    text.append(2 + 2 + 2 + 4, '\0');  // comment, part, attributes
    append(text, narrow(header), 4);
    text += member.name;
    if (extra.empty()) continue;
    append(text, kWideField, 2);
    append(text, extra.size(), 2);
    text += extra;
  }
  const std::uint64_t size = text.size();
  if (offset >= kNarrow32) {
    append(text, kWideEndSignature, 4);
    append(text, 44, 8);
    append(text, kWideVersion, 2);
    append(text, kWideVersion, 2);
    append(text, 0, 4 + 4);
    append(text, members.size(), 8);
    append(text, members.size(), 8);
    append(text, size, 8);
    append(text, offset, 8);
    append(text, kWideLocatorSignature, 4);
    append(text, 0, 4);
    append(text, offset + size, 8);
    append(text, 1, 4);
  }
  append(text, kEndSignature, 4);
  append(text, 0, 2 + 2);
  append(text, members.size(), 2);
  append(text, members.size(), 2);
  append(text, size, 4);
  append(text, narrow(offset), 4);
  append(text, 0, 2);
  return text;
}

}  // namespace tilewise::io
