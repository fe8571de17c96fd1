#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "support.h"

namespace tilewise::io {
namespace {

std::string with_tensor(const std::string& fields, std::size_t data_size = 4) {
  return safetensors_file("{\"q\":{" + fields + "}}", data_size);
}

std::string two_tensors(const std::string& first, const std::string& second,
                        std::size_t data_size) {
  const std::string fields = R"("dtype":"U8","shape":[4],"data_offsets":)";
  return safetensors_file("{\"q\":{" + fields + first + "},\"k\":{" + fields + second + "}}",
                          data_size);
}

std::vector<HostileFile> hostile_headers() {
  return {
      {"empty", "", "has 0 bytes"},
      {"length cut", "1234567", "has 7 bytes"},
      {"length 0", little_endian(0, 8), "does not begin with {"},
      {"length 2^64 - 1", std::string(8, '\xff') + "{}", "length is 18446744073709551615"},
      {"length beyond the file", little_endian(3, 8) + "{}", "the file has 2 bytes left"},
      {"length 0xfffffff0", little_endian(0xfffffff0, 8) + "{}", "the file has 2 bytes left"},
      {"list", safetensors_file("[]", 0), "does not begin with {"},
      {"space first", safetensors_file(" {}", 0), "does not begin with {"},
      {"open", safetensors_file("{", 0), "not valid JSON"},
      {"two objects", safetensors_file("{}{}", 0), "not valid JSON"},
      {"text after a zero byte", safetensors_file(std::string("{}\0{}", 5), 0), "zero byte"},
      {"comment", safetensors_file("{/**/}", 0), "not valid JSON"},
      {"trailing comma", safetensors_file("{\"q\":{},}", 0), "field dtype is missing"},
      {"not UTF-8", safetensors_file("{\"\xff\":{}}", 0), "not valid JSON"},
      {"half a surrogate", safetensors_file("{\"\\ud800\":{}}", 0), "not valid JSON"},
      {"control character", safetensors_file("{\"\n\":{}}", 0), "not valid JSON"},
      {"data without tensors", safetensors_file("{}", 1), "the file has 1"},
  };
}

std::vector<HostileFile> hostile_json() {
  const std::string tensor = R"("dtype":"U8","shape":[],"data_offsets":[0,1])";
  const std::string pad(kMaxSafetensorsHeader - 100, '[');
  return {
      {"deep lists", safetensors_file("{\"q\":" + pad, 0), "unexpected list"},
      {"deep objects", safetensors_file("{\"q\":{\"shape\":{\"a\":{\"a\":{", 0),
       "unexpected object in shape"},
      {"deep shape", with_tensor("\"shape\":" + pad), "unexpected list in shape"},
      {"tensor is a number", safetensors_file("{\"q\":1}", 0), "unexpected number '1'"},
      {"tensor is null", safetensors_file("{\"q\":null}", 0), "unexpected null"},
      {"tensor is true", safetensors_file("{\"q\":true}", 0), "unexpected boolean"},
      {"tensor is text", safetensors_file("{\"q\":\"\\u001b[2J\"}", 0), "string '\\x1b[2J'"},
      {"name twice", safetensors_file("{\"q\":{" + tensor + "},\"q\":{" + tensor + "}}", 1),
       "'q' occurs twice"},
      {"name twice, once escaped",
       safetensors_file("{\"q\":{" + tensor + "},\"\\u0071\":{" + tensor + "}}", 1),
       "'q' occurs twice"},
      {"field twice", with_tensor(tensor + ",\"shape\":[]", 1), "field shape occurs twice"},
      {"metadata twice", safetensors_file(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "occurs twice"},
      {"metadata key twice", safetensors_file(R"({"__metadata__":{"a":"","a":""}})", 0),
       "'a' occurs twice"},
      {"metadata is a number", safetensors_file(R"({"__metadata__":{"a":1}})", 0),
       "under 'a', expected a string"},
      {"metadata is nested", safetensors_file(R"({"__metadata__":{"a":{}}})", 0),
       "under 'a', expected a string"},
      {"metadata is text", safetensors_file(R"({"__metadata__":"a"})", 0), "unexpected string"},
      {"unknown field", with_tensor(tensor + ",\"x\":[]", 1), "unknown field 'x'"},
      {"no dtype", with_tensor(R"("shape":[4],"data_offsets":[0,4])"), "field dtype is missing"},
      {"no shape", with_tensor(R"("dtype":"U8","data_offsets":[0,4])"), "field shape is missing"},
      {"no offsets", with_tensor(R"("dtype":"U8","shape":[4])"), "field data_offsets is missing"},
      {"unknown type", with_tensor(R"("dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4])"),
       "dtype is 'F8_E8M0', expected"},
      {"type in small letters", with_tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"),
       "dtype is 'f32', expected"},
      {"type is a number", with_tensor(R"("dtype":4)"), "number '4' in dtype"},
      {"type is a list", with_tensor(R"("dtype":["F32"])"), "list in dtype"},
      {"shape is a number", with_tensor(R"("shape":4)"), "number '4' in shape"},
      {"shape is text", with_tensor(R"("shape":"[4]")"), "string '[4]' in shape"},
  };
}

std::vector<HostileFile> hostile_numbers() {
  std::string many = R"("dtype":"U8","shape":[1)";
  for (int i = 0; i < 64; ++i) many += ",1";
  return {
      {"negative size", with_tensor(R"("shape":[-1])"), "negative number '-1' in shape"},
      {"minus zero", with_tensor(R"("shape":[-0])"), "in shape"},
      {"fraction", with_tensor(R"("shape":[4.0])"),
       "fraction, or number beyond 64 bits, '4.0' in shape"},
      {"exponent", with_tensor(R"("shape":[4e0])"),
       "fraction, or number beyond 64 bits, '4e0' in shape"},
      {"2^63", with_tensor(R"("shape":[9223372036854775808])"), "at most 2^63 - 1"},
      {"2^64", with_tensor(R"("shape":[18446744073709551616])"),
       "fraction, or number beyond 64 bits,"},
      {"leading zero", with_tensor(R"("shape":[04])"), "not valid JSON"},
      {"rank 65", with_tensor(many + "]"), "more than 64 numbers"},
      {"product wraps to 0",
       with_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
       "needs more than 2^63 - 1"},
      {"zero hides a wrap",
       with_tensor(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0),
       "needs more than 2^63 - 1"},
      {"bytes wrap to 4",
       with_tensor(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"),
       "needs more than 2^63 - 1"},
      {"terabytes",
       with_tensor(R"("dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104])"),
       "end at byte 4398046511104"},
      {"size and offsets differ", with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"),
       "needs 8"},
      {"one offset", with_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "fewer than 2"},
      {"three offsets", with_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"),
       "more than 2"},
      {"offsets reversed", with_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"),
       "ends before it begins"},
      {"gap at the start", with_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])", 5),
       "begin at 1, expected 0 (gap)"},
      {"gap", two_tensors("[0,4]", "[5,9]", 9), "begin at 5, expected 4 (gap)"},
      {"overlap", two_tensors("[0,4]", "[3,7]", 7), "begin at 3, expected 4 (overlap)"},
      {"the same bytes", two_tensors("[0,4]", "[0,4]", 4), "begin at 0, expected 4 (overlap)"},
      {"data cut", two_tensors("[0,4]", "[4,8]", 7), "end at byte 8 of the data, the file has 7"},
      {"data too long", two_tensors("[4,8]", "[0,4]", 9),
       "end at byte 8 of the data, the file has 9"},
  };
}

// Returns headers that are as long as allowed, wrong only at the end, and made of what the parser
// is slowest at.
std::vector<HostileFile> hostile_giants() {
  constexpr std::size_t most = kMaxSafetensorsHeader;
  const auto filled = [](std::string start, const std::function<std::string(int)>& part,
                         const std::string& end) {
    std::string json = std::move(start);
    for (int i = 0;; ++i) {
      const std::string next = part(i);
      if (json.size() + next.size() + end.size() > most) break;
      json += next;
    }
    return safetensors_file(json + end, 0);
  };
  const auto name = [](int i) { return "\"" + std::to_string(i) + "\""; };
  const std::string empty = R"(:{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  return {
      {"spaces", safetensors_file("{" + std::string(most - 1, ' '), 0), "not valid JSON"},
      {"one name", safetensors_file("{\"" + std::string(most - 2, 'x'), 0), "not valid JSON"},
      {"escapes",
       filled(
           "{\"", [](int) { return "\\u00e9"; }, ""),
       "not valid JSON"},
      {"digits", safetensors_file("{\"q\":{\"shape\":[" + std::string(most - 15, '9'), 0),
       "not valid JSON"},
      {"tensors",
       filled(
           "{", [&](int i) { return name(i) + empty + ","; }, "\"0\"" + empty + "}"),
       "'0' occurs twice"},
      {"metadata",
       filled(
           "{\"__metadata__\":{", [&](int i) { return name(i) + ":\"\","; }, "\"0\":\"\"}}"),
       "'__metadata__': more than 4096 entries"},
      {"long metadata",
       filled(
           "{\"__metadata__\":{",
           [&](int i) { return name(i) + ":\"" + std::string(55, 'v') + "\","; }, "\"0\":\"\"}}"),
       "'0' occurs twice"},
      {"one byte over", safetensors_file("{" + std::string(most, ' '), 0), "at most"},
  };
}

TEST(Safetensors, HostileHeadersAreRefused) { expect_refused(hostile_headers(), read_safetensors); }

TEST(Safetensors, HostileJsonIsRefused) { expect_refused(hostile_json(), read_safetensors); }

TEST(Safetensors, HostileNumbersAreRefused) { expect_refused(hostile_numbers(), read_safetensors); }

TEST(Safetensors, GiantHeadersAreRefused) { expect_refused(hostile_giants(), read_safetensors); }

TEST(Safetensors, A90MegabyteHeaderIsRefusedUnread) {
  const std::size_t size = 90'000'000;
  expect_refused({{"spaces", safetensors_file("{" + std::string(size - 2, ' ') + "}", 0),
                   "length is 90000000, at most"}},
                 read_safetensors);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string whole = two_tensors("[0,4]", "[4,8]", 8);
  EXPECT_EQ(file_error([&] { parse_safetensors(as_bytes(whole)); }), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(file_error([&] {
                parse_safetensors(as_bytes({part.data(), part.size()}));
              }),
              "")
        << size;
  }
}

}  // namespace
}  // namespace tilewise::io
