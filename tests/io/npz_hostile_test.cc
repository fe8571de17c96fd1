#include <gtest/gtest.h>

#include "io/npz.h"
#include "npz_support.h"
#include "support.h"

namespace tilewise::io {
namespace {

void read_all(const std::string& path) {
  read_npz(path, [](std::string_view) { return true; });
}

const std::string& content() {
  static const std::string bytes = npy_bytes(pattern_array(ElementType::f32, {2, 3}));
  return bytes;
}

// A file with one member, changed.
template <class Change>
std::string changed(ZipPart part, const Change& change) {
  change(part);
  return zip_file({part});
}
template <class Change>
std::string changed(const Change& change) {
  return changed(stored("q.npy", content()), change);
}

std::string zeros_of(std::int64_t size) {
  return npy_bytes(make_array(ElementType::u8, std::vector<std::int64_t>{size}));
}

// Changes a number of the end record, or of the zip64 end record.
std::string with_number(std::string file, std::size_t from_end, std::uint64_t value, int width) {
  return file.replace(file.size() - from_end, static_cast<std::size_t>(width),
                      little_endian(value, width));
}

std::vector<HostileFile> hostile_ends() {
  const std::string one = zip_file({stored("q.npy", content())});
  const std::string wide = zip_file({stored("q.npy", content())}, true);
  return {
      {"empty", "", "end of the zip file is missing"},
      {"npy", content(), "end of the zip file is missing"},
      {"cut", one.substr(0, one.size() - 1), "end of the zip file is missing"},
      {"after the end", one + "x", "end of the zip file is missing, or has a comment"},
      {"comment", with_number(one, 2, 1, 2), "has a comment"},
      {"parts", with_number(one, 18, 1, 2), "several parts"},
      {"two counts", with_number(one, 12, 2, 2), "several parts"},
      {"many members", with_number(with_number(one, 12, 2000, 2), 14, 2000, 2), "2000 members"},
      {"one member more", with_number(with_number(one, 12, 2, 2), 14, 2, 2), "cut short"},
      {"one member less", with_number(with_number(one, 12, 0, 2), 14, 0, 2), "after its last"},
      {"large directory", with_number(one, 10, 0xfffffff0, 4), "4294967280 bytes, at most"},
      {"directory beyond the file", with_number(one, 6, 0xfffffff0, 4), "does not lie between"},
      {"directory begins early", with_number(one, 6, 1, 4), "does not lie between"},
      {"zip64 without a record", with_number(one, 6, 0xffffffff, 4), "zip64 end record is not"},
      {"zip64 in a short file", "PK\5\6" + std::string(16, '\xff') + std::string(2, '\0'),
       "several parts"},
      {"zip64 of many members", with_number(with_number(wide, 74, 1 << 30, 8), 66, 1 << 30, 8),
       "1073741824 members"},
      {"zip64 of a large directory", with_number(wide, 58, UINT64_MAX, 8),
       "18446744073709551615 bytes"},
      {"zip64 locator elsewhere", with_number(wide, 34, 0, 8), "zip64 end record is not valid"},
  };
}

std::vector<HostileFile> hostile_directories() {
  const std::uint64_t giant = std::uint64_t{1} << 62;
  const std::string giant_field =
      little_endian(1, 2) + little_endian(8, 2) + little_endian(giant, 8);
  return {
      {"not an array", changed([](auto& p) { p.name = "q\x1b[2J\n.txt"; }),
       "member 'q\\x1b[2J\\x0a.txt': is not an array"},
      {"folder", changed([](auto& p) { p.name = "q.npy/"; }), "is not an array"},
      {"no name", changed([](auto& p) { p.name = ""; }), "is not an array"},
      {"encrypted", changed([](auto& p) { p.flags = 1; }), "is encrypted"},
      {"strongly encrypted", changed([](auto& p) { p.flags = 0x40; }), "flags are 64"},
      {"bzip2", changed([](auto& p) { p.method = 12; }), "method is 12, expected 0 (stored) or 8"},
      {"stored with another size", changed([](auto& p) { p.size += 1; }), "is stored with"},
      {"other local name", changed([](auto& p) { p.local_name = "k.npy"; }), "its header is not"},
      {"long local name", changed([](auto& p) { p.local_name = std::string(60000, 'x'); }),
       "its header is not"},
      {"header after the directory", changed([](auto& p) { p.begin = 0xfffffff0; }),
       "after the last one"},
      {"header in the data", changed([](auto& p) { p.begin = 5; }), "its header is not"},
      {"data beyond the file", changed([](auto& p) { p.size = p.stored_size = 100000; }),
       "has 100000 bytes, the file has"},
      {"extra field cut", changed([](auto& p) { p.extra = std::string("\1\0\x10\0xx", 6); }),
       "an extra field is cut short"},
      {"zip64 field cut", changed([](auto& p) {
         p.extra = little_endian(1, 2) + little_endian(4, 2) + "xxxx";
         p.size = p.stored_size = 0xffffffff;
       }),
       "the zip64 field is cut short"},
      {"zip64 size",
       changed(deflated("q.npy", content()),
               [&](auto& p) {
                 p.extra = giant_field;
                 p.size = 0xffffffff;
               }),
       "becomes 4611686018427387904 bytes from"},
      {"zip64 offset", changed([&](auto& p) {
         p.extra = giant_field;
         p.begin = 0xffffffff;
       }),
       "after the last one"},
      {"twice", zip_file({stored("q.npy", content()), stored("q.npy", content())}),
       "'q.npy': occurs twice"},
  };
}

// All members begin in one piece of data, so that a small file has gigabytes.
std::string overlapping(std::size_t count) {
  std::vector<ZipPart> parts;
  for (std::size_t i = 0; i < count; ++i) {
    ZipPart part = deflated("q.npy", content());
    part.name = part.local_name = "q.npy";
    part.begin = 0;
    if (i > 0) part.data.clear();
    parts.push_back(part);
  }
  for (std::size_t i = 1; i < count; ++i) parts[i].name = std::to_string(i) + "q.npy";
  return zip_file(parts);
}

// A member that lies in the data of another one.
std::string nested() {
  const ZipPart inner = stored("k.npy", content());
  const std::string inside = zip_file({inner});
  ZipPart outer = stored("q.npy", inside);
  ZipPart entry = inner;
  entry.begin = 30 + 5;
  entry.data.clear();
  std::string file = zip_file({outer, entry});
  return file;
}

std::vector<HostileFile> hostile_bombs() {
  const auto claims = [](std::uint64_t size) {
    return changed(deflated("q.npy", content()), [&](auto& p) { p.size = size; });
  };
  std::string twice = zeros_of(1000);
  return {
      {"zeros", zip_file({deflated("q.npy", zeros_of(20'000'000))}), "becomes 20000128 bytes from"},
      {"many zeros", zip_file(std::vector<ZipPart>(1, deflated("q.npy", zeros_of(100'000'000)))),
       "more than 128 times as many"},
      {"claims gigabytes", claims(0xfffffff0), "becomes 4294967280 bytes from"},
      {"claims megabytes", claims(2 << 20), "is not a deflated stream of 2097152 bytes"},
      {"as many zeros as are inflated",
       changed(deflated("q.npy", zeros_of((2 << 20) - 128)), [](auto& p) { p.checksum ^= 1; }),
       "the checksum is wrong"},
      {"claims less", claims(content().size() - 1), "needs 24 bytes of data, the file has 23"},
      {"claims the header only", claims(20), "header length is"},
      {"shape of terabytes",
       zip_file({deflated("q.npy", npy_file("{'descr': '<f4', 'fortran_order': True, 'shape': "
                                            "(1048576, 1048576), }",
                                            4))}),
       "needs 4398046511104 bytes of data, the file has 4"},
      {"more than its size",
       changed(deflated("q.npy", content() + twice), [](auto& p) { p.size = content().size(); }),
       "is not a deflated stream of 152 bytes"},
      {"overlapping", overlapping(2), "its header is not that of the zip directory"},
      {"nested", nested(), "shares bytes with another member"},
      {"a stream of nothing",
       changed(deflated("q.npy", content()),
               [](auto& p) {
                 p.data = std::string(1'000'000, '\0');
                 p.stored_size = p.data.size();
               }),
       "is not a deflated stream"},
  };
}

std::vector<HostileFile> hostile_members() {
  return {
      {"wrong checksum, stored", changed([](auto& p) { p.checksum ^= 1; }),
       "member 'q.npy': the checksum is wrong"},
      {"wrong checksum, deflated",
       changed(deflated("q.npy", content()), [](auto& p) { p.checksum ^= 1; }),
       "the checksum is wrong"},
      {"no npy", zip_file({stored("q.npy", "hello")}), "does not begin with"},
      {"no npy, deflated", zip_file({deflated("q.npy", "hello")}), "does not begin with"},
      {"no stream", changed(deflated("q.npy", content()), [](auto& p) { p.data[0] = '\xff'; }),
       "is not a deflated stream"},
      {"stream cut",
       changed(deflated("q.npy", content()),
               [](auto& p) {
                 p.data.pop_back();
                 --p.stored_size;
               }),
       "is not a deflated stream"},
      {"bytes after the stream",
       changed(deflated("q.npy", content()),
               [](auto& p) {
                 p.data += "x";
                 ++p.stored_size;
               }),
       "is not a deflated stream"},
      {"objects",
       zip_file({stored("q.npy",
                        npy_file("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", 8))}),
       "Python objects"},
  };
}

std::string giant_directory() {
  std::vector<ZipPart> parts;
  for (int i = 0; i < 1024; ++i)
    parts.push_back(stored(std::string(200, 'x') + std::to_string(i) + ".npy", ""));
  parts.back().name = parts.back().local_name = parts.front().name;
  return zip_file(parts);
}

TEST(Npz, HostileEndsAreRefused) { expect_refused(hostile_ends(), read_all); }

TEST(Npz, HostileDirectoriesAreRefused) { expect_refused(hostile_directories(), read_all); }

TEST(Npz, BombsAreRefused) { expect_refused(hostile_bombs(), read_all); }

TEST(Npz, HostileMembersAreRefused) { expect_refused(hostile_members(), read_all); }

TEST(Npz, GiantDirectoriesAreRefused) {
  expect_refused({{"names", giant_directory(), "occurs twice"}}, read_all);
}

TEST(Npz, EveryTruncationAndEveryChangedByteIsReadOrRefused) {
  const std::string whole =
      zip_file({stored("q.npy", content()), deflated("k.npy", content())}, true);
  const auto parse = [](const std::string& bytes) {
    const Source source = {as_bytes(bytes), nullptr, "npz data"};
    return file_error([&] { parse_npz(source, [](std::string_view) { return true; }); });
  };
  EXPECT_EQ(parse(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(parse(std::string(whole.data(), size)), "") << size;
    for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
      std::string bytes = whole;
      bytes[size] = value;
      parse(bytes);  // must end
    }
  }
}

}  // namespace
}  // namespace tilewise::io
