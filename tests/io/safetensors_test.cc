#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support.h"

namespace tilewise::io {
namespace {

TensorFile every_type(const std::vector<std::int64_t>& shape) {
  TensorFile file;
  for (const ElementType type : kElementTypes) {
    file.tensors.push_back({std::string(element_name(type)), pattern_array(type, shape)});
  }
  return file;
}

TEST(Safetensors, EveryTypeAndShapeSurvivesARoundTrip) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  for (const auto& shape : interesting_shapes()) {
    SCOPED_TRACE(shape_text(shape));
    TensorFile file = every_type(shape);
    file.metadata = {{"z", "1"}, {"a", "\xc3\xa9\n\"\\"}, {"", ""}};
    write_safetensors(path, file);
    const TensorFile back = read_safetensors(path);
    EXPECT_EQ(back.metadata, file.metadata);
    ASSERT_EQ(back.tensors.size(), file.tensors.size());
    for (const NamedTensor& tensor : file.tensors) {
      const Array* array = back.find(tensor.name);
      ASSERT_NE(array, nullptr) << tensor.name;
      EXPECT_TRUE(same_array(*array, tensor.array)) << tensor.name;
      EXPECT_TRUE(array->writable.empty()) << "written files are aligned, so all are views";
    }
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.safetensors"});
}

TEST(Safetensors, AFileWithoutTensorsSurvivesARoundTrip) {
  const std::string bytes = format_safetensors({});
  const TensorFile back = parse_safetensors(as_bytes(bytes));
  EXPECT_TRUE(back.tensors.empty());
  EXPECT_TRUE(back.metadata.empty());
  EXPECT_EQ(back.find("q"), nullptr);
}

TEST(Safetensors, NamesOfEveryKindSurviveARoundTrip) {
  TensorFile file;
  for (const char* name :
       {"", "a", "a.b/c", "\xc3\xa9", "\x01\n\"\\", "\xf0\x9f\x98\x80", "__metadata"}) {
    file.tensors.push_back({name, pattern_array(ElementType::u8, {2})});
  }
  const std::string bytes = format_safetensors(file);
  const TensorFile back = parse_safetensors(as_bytes(bytes));
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const NamedTensor& tensor : file.tensors) EXPECT_NE(back.find(tensor.name), nullptr);
}

TEST(Safetensors, TensorsKeepTheOrderOfTheHeader) {
  const std::string bytes =
      safetensors_file(R"({"b":{"data_offsets":[1,2],"shape":[1],"dtype":"U8"},)"
                       R"("a":{"dtype":"I8","shape":[],"data_offsets":[0,1]}}   )",
                       2);
  const TensorFile file = parse_safetensors(as_bytes(bytes));
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "b");
  EXPECT_EQ(file.tensors[1].name, "a");
}

TEST(Safetensors, MisalignedDataIsCopied) {
  std::string bytes = safetensors_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                       R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
                                       1);
  const double value = 1.0 / 3.0;
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  const TemporaryFolder folder;
  write_bytes(folder / "a", bytes);
  const TensorFile file = read_safetensors(folder / "a");
  const Array* array = file.find("b");
  ASSERT_NE(array, nullptr);
  EXPECT_EQ(array->elements<double>()[0], value);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array->bytes.data()) % 8, 0u);
}

TEST(Safetensors, AnArrayOutlivesItsFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const Array original = pattern_array(ElementType::f32, {1000});
  write_safetensors(path, {{{"q", original}}, {}});
  Array array;
  {
    const TensorFile file = read_safetensors(path);
    array = *file.find("q");
  }
  write_safetensors(path, {});
  EXPECT_TRUE(same_array(array, original));
}

TEST(Safetensors, TensorsThatCannotBeWrittenAreRefused) {
  const TemporaryFolder folder;
  const Array array = pattern_array(ElementType::u8, {1});
  const auto error = [&](const TensorFile& file) {
    return file_error([&] { write_safetensors(folder / "a", file); });
  };
  EXPECT_NE(error({{{"q", array}, {"q", array}}, {}}).find("'q' occurs twice"), std::string::npos);
  EXPECT_NE(error({{{"__metadata__", array}}, {}}).find("reserved"), std::string::npos);
  EXPECT_NE(error({{{"\xff", array}}, {}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(error({{}, {{"k", "1"}, {"k", "2"}}}).find("'k' occurs twice"), std::string::npos);
  EXPECT_NE(error({{}, {{"k", "\xc3"}}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(error({{{std::string(kMaxSafetensorsHeader, 'x'), array}}, {}}).find("at most"),
            std::string::npos);
  TensorFile crowded;
  for (int i = 0; i <= 4096; ++i) crowded.metadata.push_back({std::to_string(i), ""});
  EXPECT_NE(error(crowded).find("4097 entries, at most 4096"), std::string::npos);
  Array short_array = array;
  short_array.shape = {2};
  EXPECT_NE(error({{{"q", short_array}}, {}}).find("has 1 bytes, expected 2"), std::string::npos);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace tilewise::io
