#include "io/array.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "io/file_error.h"
#include "support.h"

namespace tilewise::io {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(Array, SizesAreCheckedProducts) {
  EXPECT_EQ(element_count(Shape{}), 1);
  EXPECT_EQ(byte_size(ElementType::f64, Shape{2, 3}), 48);
  EXPECT_EQ(byte_size(ElementType::boolean, Shape{7}), 7);
  EXPECT_EQ(byte_size(ElementType::bf16, Shape{0, 1000}), 0);
  EXPECT_EQ(byte_size(ElementType::u8, Shape{std::numeric_limits<std::int64_t>::max()}),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(byte_size(ElementType::f64, Shape{1LL << 60}), std::nullopt);
  EXPECT_EQ(byte_size(ElementType::u8, Shape{1LL << 32, 1LL << 32}), std::nullopt);
  EXPECT_EQ(byte_size(ElementType::u8, Shape{-1}), std::nullopt);
  EXPECT_EQ(byte_size(ElementType::u8, Shape(kMaxRank + 1, 1)), std::nullopt);
}

TEST(Array, ZeroDoesNotHideAnOverflow) {
  EXPECT_EQ(byte_size(ElementType::u8, Shape{0, 1LL << 32, 1LL << 32}), std::nullopt);
  EXPECT_EQ(byte_size(ElementType::u8, Shape{1LL << 32, 1LL << 32, 0}), std::nullopt);
  EXPECT_EQ(byte_size(ElementType::u8, Shape{0, -1}), std::nullopt);
}

TEST(Array, OwnedBytesAreZeroAlignedAndShared) {
  Array array = make_array(ElementType::f32, Shape{5, 3});
  ASSERT_EQ(array.elements<float>().size(), 15u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.bytes.data()) % kArrayAlignment, 0u);
  for (const float value : array.elements<float>()) EXPECT_EQ(value, 0.0f);
  const Array copy = array;
  array.writable_elements<float>()[4] = 2.5f;
  EXPECT_EQ(copy.elements<float>()[4], 2.5f);
}

TEST(Array, ElementsOfAnotherSizeAreRefused) {
  const Array array = make_array(ElementType::bf16, Shape{2});
  EXPECT_EQ(array.elements<std::uint16_t>().size(), 2u);
  EXPECT_THROW(array.elements<float>(), std::invalid_argument);
}

TEST(Array, ShapesWithoutASizeAreRefused) {
  EXPECT_THROW(make_array(ElementType::f32, Shape{-1}), std::invalid_argument);
  EXPECT_THROW(make_array(ElementType::f64, Shape{1LL << 61}), std::invalid_argument);
  EXPECT_THROW(copy_array(ElementType::u8, Shape{3}, as_bytes("ab")), std::invalid_argument);
}

TEST(Array, AViewIsCopiedOnlyIfMisaligned) {
  alignas(8) const char bytes[17] = "0123456789abcdef";
  const auto all = as_bytes({bytes, 16});
  const Array view = view_array(ElementType::f64, Shape{1}, all.subspan(8), nullptr);
  EXPECT_EQ(view.bytes.data(), all.data() + 8);
  EXPECT_TRUE(view.writable.empty());
  const Array copy = view_array(ElementType::f64, Shape{1}, all.subspan(3, 8), nullptr);
  EXPECT_NE(copy.bytes.data(), all.data() + 3);
  EXPECT_EQ(std::memcmp(copy.bytes.data(), bytes + 3, 8), 0);
}

TEST(Array, ShapesPrintAsInPython) {
  EXPECT_EQ(shape_text(Shape{}), "()");
  EXPECT_EQ(shape_text(Shape{4}), "(4,)");
  EXPECT_EQ(shape_text(Shape{2, 0}), "(2, 0)");
}

TEST(FileError, TextFromAFileCannotBreakTheLine) {
  EXPECT_EQ(printable("a\nb\x1b[2J'\\\x7f\xc3\xa9"), "a\\x0ab\\x1b[2J\\'\\\\\\x7f\xc3\xa9");
  EXPECT_EQ(printable(std::string(100, 'x')), std::string(60, 'x') + "...");
  EXPECT_STREQ(FileError("a\nb", "is bad").what(), "a\\x0ab: is bad");
}

}  // namespace
}  // namespace tilewise::io
