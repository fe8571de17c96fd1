#include "io/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "support.h"

namespace tilewise::io {
namespace {

constexpr std::string_view kPair = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n";

TEST(Npy, EveryTypeAndShapeSurvivesARoundTrip) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  for (const ElementType type : kElementTypes) {
    for (const auto& shape : interesting_shapes()) {
      SCOPED_TRACE(std::string(element_name(type)) + " " + shape_text(shape));
      const Array array = pattern_array(type, shape);
      write_npy(path, array);
      EXPECT_TRUE(same_array(read_npy(path), array));
    }
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
}

TEST(Npy, DataBeginsOnA64ByteBoundary) {
  for (const auto& shape : interesting_shapes()) {
    EXPECT_EQ(npy_preamble(pattern_array(ElementType::f32, shape)).size() % 64, 0u);
  }
}

TEST(Npy, AMappedFileIsAViewUntilTheArrayIsGone) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  const Array array = pattern_array(ElementType::f32, {100, 3});
  write_npy(path, array);
  const Array first = read_npy(path);
  EXPECT_TRUE(first.writable.empty());
  // Replacing the file does not change the mapped one.
  write_npy(path, pattern_array(ElementType::u8, {2}));
  EXPECT_TRUE(same_array(first, array));
  EXPECT_EQ(read_npy(path).shape, std::vector<std::int64_t>{2});
}

TEST(Npy, Versions1To3AreRead) {
  for (const int version : {1, 2, 3}) {
    const std::string file = npy_file(kPair, 4, version);
    const Array array = parse_npy(as_bytes(file));
    EXPECT_EQ(array.type, ElementType::i16);
    EXPECT_EQ(array.elements<std::int16_t>()[1], 0x0101);
  }
}

TEST(Npy, HeadersInOtherOrderQuotesAndSpacingAreRead) {
  for (const char* header :
       {"{'descr':'<i2','fortran_order':False,'shape':(2,)}",
        "{ \"shape\" : ( 2 , ) , \"fortran_order\" : True , \"descr\" : \"<i2\" } \t\r\n",
        "{'fortran_order': False,\n 'shape': (2,),\n 'descr': '<i2',\n}      "}) {
    const std::string file = npy_file(header, 4);
    EXPECT_EQ(parse_npy(as_bytes(file)).shape, std::vector<std::int64_t>{2}) << header;
  }
}

TEST(Npy, BothSpellingsOfBytesWithoutOrderAreRead) {
  struct Row {
    std::string descriptor;
    ElementType type;
    std::size_t size;
  };
  for (const Row& row : {Row{"<V1", ElementType::e4m3, 2}, Row{"<f1", ElementType::e5m2, 2},
                         Row{"|V2", ElementType::bf16, 4}, Row{"<V2", ElementType::bf16, 4},
                         Row{"|i1", ElementType::i8, 2}, Row{"<i1", ElementType::i8, 2},
                         Row{"|b1", ElementType::boolean, 2}, Row{"<u1", ElementType::u8, 2}}) {
    const std::string file = npy_file(
        "{'descr': '" + row.descriptor + "', 'fortran_order': False, 'shape': (2,)}", row.size);
    EXPECT_EQ(parse_npy(as_bytes(file)).type, row.type) << row.descriptor;
  }
}

TEST(Npy, FortranOrderBecomesCOrder) {
  std::string file = npy_file("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 2)}", 0);
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) {
        file += little_endian(static_cast<std::uint64_t>(100 * i + 10 * j + k), 4);
      }
    }
  }
  const Array array = parse_npy(as_bytes(file));
  const std::int32_t expected[] = {0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121};
  ASSERT_EQ(array.bytes.size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(array.bytes.data(), expected, sizeof(expected)), 0);
}

TEST(Npy, FortranOrderOfEveryElementSizeIsRead) {
  for (const ElementType type : kElementTypes) {
    std::string header = npy_preamble(pattern_array(type, {2, 3}));
    header.replace(header.find("False"), 5, "True ");
    const auto size = static_cast<std::size_t>(element_size(type));
    std::string data;
    for (char element = 0; element < 6; ++element) data += std::string(size, element);
    const std::string file = header + data;
    const Array array = parse_npy(as_bytes(file));
    const char expected[] = {0, 2, 4, 1, 3, 5};
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(static_cast<char>(array.bytes[i * size]), expected[i]) << element_name(type);
    }
  }
}

TEST(Npy, WritingAnArrayThatContradictsItselfIsRefused) {
  const TemporaryFolder folder;
  Array array = pattern_array(ElementType::f32, {4});
  array.shape = {5};
  EXPECT_NE(
      file_error([&] { write_npy(folder / "a.npy", array); }).find("has 16 bytes, expected 20"),
      std::string::npos);
  array.shape = {-1};
  EXPECT_NE(file_error([&] { write_npy(folder / "a.npy", array); }), "");
  EXPECT_TRUE(folder.names().empty());
}

TEST(Npy, PathsThatAreNoRegularFilesAreRefusedAtOnce) {
  const TemporaryFolder folder;
  EXPECT_NE(file_error([&] { read_npy(folder / "absent"); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(file_error([&] { read_npy(folder / "."); }).find("not a regular file"),
            std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(file_error([&] { read_npy(folder / "pipe"); }).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(file_error([&] { read_npy("/dev/zero"); }).find("not a regular file"),
            std::string::npos);
}

}  // namespace
}  // namespace tilewise::io
