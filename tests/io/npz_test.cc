#include "io/npz.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "io/zip_directory.h"
#include "npz_support.h"
#include "support.h"

namespace tilewise::io {
namespace {

const Wanted kAll = [](std::string_view) { return true; };

Source source_of(const std::string& bytes) { return {as_bytes(bytes), nullptr, "npz data"}; }

TEST(Npz, EveryTypeAndShapeSurvivesARoundTrip) {
  const TemporaryFolder folder;
  for (const auto& shape : interesting_shapes()) {
    SCOPED_TRACE(shape_text(shape));
    TensorFile file;
    for (const ElementType type : kElementTypes)
      file.tensors.push_back({std::string(element_name(type)), pattern_array(type, shape)});
    stage_npz(folder / "a.npz", file).commit();
    EXPECT_EQ(read_bytes(folder / "a.npz"), format_npz(file, ""));
    const TensorFile back = read_tensor_file(folder / "a.npz", kAll);
    ASSERT_EQ(back.tensors.size(), file.tensors.size());
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      EXPECT_EQ(back.tensors[i].name, file.tensors[i].name);
      EXPECT_TRUE(same_array(back.tensors[i].array, file.tensors[i].array));
    }
  }
}

TEST(Npz, DeflatedMembersAreInflated) {
  const Array small = pattern_array(ElementType::f32, {3, 5});
  Array large = pattern_array(ElementType::i32, {3, 700000});
  std::int32_t number = 0;
  for (std::int32_t& element : large.writable_elements<std::int32_t>()) element = number++;
  const std::string bytes =
      zip_file({deflated("s.npy", npy_bytes(small)), deflated("l.npy", npy_bytes(large))});
  const TensorFile file = parse_npz(source_of(bytes), kAll);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_TRUE(same_array(file.tensors[0].array, small));
  EXPECT_TRUE(same_array(file.tensors[1].array, large));
}

TEST(Npz, OnlyWantedMembersAreRead) {
  const Array q = pattern_array(ElementType::f32, {3});
  ZipPart broken = deflated("x.npy", "no npy file");
  broken.data = "no deflated stream";
  const std::string bytes = zip_file({broken, stored("q.npy", npy_bytes(q))});
  const TensorFile file = parse_npz(source_of(bytes), [](auto name) { return name == "q"; });
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_TRUE(same_array(*file.find("q"), q));
  EXPECT_NE(file_error([&] { parse_npz(source_of(bytes), kAll); }), "");
}

TEST(Npz, AFileWithoutMembersHasNoTensors) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", zip_file({}));
  EXPECT_TRUE(read_tensor_file(folder / "a", kAll).tensors.empty());
}

TEST(Npz, ZeroOffsetsAndSizesOfZip64AreRead) {
  const Array q = pattern_array(ElementType::f32, {3});
  ZipPart part = stored("q.npy", npy_bytes(q));
  part.wide = true;
  const std::string bytes = zip_file({stored("a.npy", npy_bytes(q)), part}, true);
  const TensorFile file = parse_npz(source_of(bytes), kAll);
  EXPECT_TRUE(same_array(*file.find("q"), q));
}

TEST(Npz, AnArrayOutlivesItsFile) {
  const TemporaryFolder folder;
  const Array original = pattern_array(ElementType::f32, {1000});
  write_bytes(folder / "a", zip_file({deflated("q.npy", npy_bytes(original))}));
  const Array array = *read_npz(folder / "a", kAll).find("q");
  write_bytes(folder / "a", "");
  EXPECT_TRUE(same_array(array, original));
}

TEST(Npz, TensorsThatCannotBeWrittenAreRefused) {
  const TemporaryFolder folder;
  TensorFile file;
  file.metadata = {{"a", "b"}};
  const auto error = [&] { return file_error([&] { stage_npz(folder / "a", file).commit(); }); };
  EXPECT_NE(error().find("no metadata"), std::string::npos);
  file.metadata.clear();
  for (int i = 0; i <= 1024; ++i)
    file.tensors.push_back({std::to_string(i), pattern_array(ElementType::u8, {1})});
  EXPECT_NE(error().find("1025 tensors, at most 1024"), std::string::npos);
  EXPECT_TRUE(folder.names().empty());
}

// A member of 4 GiB in a file with a hole, which takes no space: offsets beyond 32 bits.
TEST(Npz, OffsetsBeyond32BitsAreThoseOfZip64) {
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 32;
  std::vector<ZipMember> members = {{"a.npy", false, 0, 0, kLarge, kLarge},
                                    {"b.npy", false, 0, 0, 8, 8}};
  std::uint64_t offset = 0;
  for (ZipMember& member : members) {
    member.begin = offset + zip_local_header(member).size();
    offset = member.begin + member.size;
  }
  const TemporaryFolder folder;
  const std::string path = folder / "large";
  write_bytes(path, zip_local_header(members[0]));
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(members[0].begin + kLarge)), 0);
  append_bytes(path, zip_local_header(members[1]) + "12345678" + zip_directory(members, offset));
  const std::vector<ZipMember> read = read_zip_directory(map_file(path));
  ASSERT_EQ(read.size(), members.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].name, members[i].name);
    EXPECT_EQ(read[i].begin, members[i].begin);
    EXPECT_EQ(read[i].size, members[i].size);
  }
}

}  // namespace
}  // namespace tilewise::io
