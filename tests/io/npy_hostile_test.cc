#include <gtest/gtest.h>

#include "io/npy.h"
#include "support.h"

namespace tilewise::io {
namespace {

std::string with_shape(const std::string& shape, std::size_t data_size = 0) {
  return npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n",
                  data_size);
}

std::string with_type(const std::string& descriptor) {
  return npy_file("{'descr': " + descriptor + ", 'fortran_order': False, 'shape': (2,), }\n", 8);
}

std::vector<HostileFile> hostile_preambles() {
  const std::string magic = "\x93NUMPY";
  const std::string one("\1\0", 2);
  const std::string two("\2\0", 2);
  return {
      {"empty", "", "does not begin with"},
      {"magic cut", magic.substr(0, 5), "does not begin with"},
      {"version cut", magic + "\1", "does not begin with"},
      {"other magic", "\x94NUMPY" + one + "..", "does not begin with"},
      {"length cut", magic + one + "\1", "cut short"},
      {"length cut, version 2", magic + two + "\1\1\1", "cut short"},
      {"version 0", npy_file("{}", 0, 0), "version is 0.0"},
      {"version 4", npy_file("{}", 0, 4), "version is 4.0"},
      {"minor version", magic + "\1\1" + std::string(64, ' '), "version is 1.1"},
      {"header of 4 GiB", magic + two + "\xf0\xff\xff\xff", "length is 4294967280, at most 65536"},
      {"header beyond the file", magic + one + "\xff\x7f{", "the file has 1 bytes left"},
      {"header of 64 KiB and one", npy_file(std::string(65537, ' '), 0, 2), "at most 65536"},
      {"spaces only", npy_file(std::string(65536, ' '), 0, 2), "expected '{'"},
      {"no header", npy_file("", 0), "expected '{'"},
  };
}

std::vector<HostileFile> hostile_literals() {
  return {
      {"list", npy_file("[1]", 0), "expected '{'"},
      {"open", npy_file("{'descr': '<f4'", 0), "expected '}'"},
      {"empty dictionary", npy_file("{}", 0), "'descr' is missing"},
      {"no shape", npy_file("{'descr': '<f4', 'fortran_order': True}", 0), "'shape' is missing"},
      {"no order", npy_file("{'descr': '<f4', 'shape': ()}", 4), "'fortran_order' is missing"},
      {"key twice", npy_file("{'descr': '<f4', 'descr': '<f8'}", 0), "occurs twice"},
      {"order twice", npy_file("{'fortran_order': True, 'fortran_order': True}", 0),
       "occurs twice"},
      {"unknown key", npy_file("{'evil\x1b[2J\n': 1}", 0), "unknown key 'evil\\x1b[2J\\x0a'"},
      {"key without quotes", npy_file("{descr: '<f4'}", 0), "expected a string"},
      {"string without end", npy_file("{'descr", 0), "does not end"},
      {"escape", npy_file("{'de\\x73cr': '<f4'}", 0), "backslash"},
      {"no colon", npy_file("{'descr' '<f4'}", 0), "expected ':'"},
      {"order is 1", npy_file("{'fortran_order': 1}", 0), "neither True nor False"},
      {"text after", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", 4),
       "unexpected text"},
      {"zero byte after",
       npy_file(std::string("{'descr': '<f4', 'fortran_order': False, 'shape': ()}\0", 54), 4),
       "unexpected text"},
      {"code", npy_file("{'descr': __import__('os').system('true')}", 0), "expected a string"},
      {"deep", npy_file("{'shape': " + std::string(60000, '('), 0), "not a number"},
      {"commas", npy_file("{,}", 0), "expected a string"},
  };
}

std::vector<HostileFile> hostile_shapes_and_types() {
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1,";
  return {
      {"negative", with_shape("(-1,)"), "not a number"},
      {"list shape", with_shape("[-1]"), "expected '('"},
      {"number", with_shape("(2)", 8), "not a tuple"},
      {"comma only", with_shape("(,)"), "not a number"},
      {"two commas", with_shape("(2,,)", 8), "not a number"},
      {"fraction", with_shape("(2.0,)", 8), "expected ')'"},
      {"letters", with_shape("(2L,)", 8), "expected ')'"},
      {"leading zero", with_shape("(02,)", 8), "leading zero"},
      {"more than int64", with_shape("(9223372036854775808,)"), "exceeds 2^63 - 1"},
      {"many digits", with_shape("(" + std::string(60000, '9') + ",)"), "exceeds 2^63 - 1"},
      {"product wraps to 0", with_shape("(4294967296, 4294967296)"), "more than 2^63 - 1"},
      {"bytes wrap to 4", with_shape("(4611686018427387905,)", 4), "more than 2^63 - 1"},
      {"zero hides a wrap", with_shape("(0, 4294967296, 4294967296)"), "more than 2^63 - 1"},
      {"rank 65", with_shape(many + ")", 4), "more than 64 dimensions"},
      {"data cut", with_shape("(4,)", 15), "needs 16 bytes of data, the file has 15"},
      {"data too long", with_shape("(4,)", 17), "needs 16 bytes of data, the file has 17"},
      {"terabytes", with_shape("(1099511627776,)", 4), "needs 4398046511104 bytes"},
      {"Fortran order of terabytes",
       npy_file("{'descr': '<f4', 'fortran_order': True, 'shape': (1048576, 1048576)}", 4),
       "needs 4398046511104 bytes"},
      {"big-endian", with_type("'>f4'"), "big-endian"},
      {"object", with_type("'|O'"), "Python objects"},
      {"complex", with_type("'<c8'"), "'<c8', expected"},
      {"text", with_type("'<U4'"), "'<U4', expected"},
      {"time", with_type("'<M8[ns]'"), "expected"},
      {"unknown", with_type("'<ixy'"), "'<ixy', expected"},
      {"no order", with_type("'f4'"), "'f4', expected"},
      {"empty type", with_type("''"), "'', expected"},
      {"longer void", with_type("'|V3'"), "'|V3', expected"},
      {"structured", with_type("[('x', '<f4')]"), "structured"},
      {"long type", with_type("'" + std::string(60000, 'f') + "'"), "...', expected"},
  };
}

TEST(Npy, HostilePreamblesAreRefused) { expect_refused(hostile_preambles(), read_npy); }

TEST(Npy, HostileLiteralsAreRefused) { expect_refused(hostile_literals(), read_npy); }

TEST(Npy, HostileShapesAndTypesAreRefused) { expect_refused(hostile_shapes_and_types(), read_npy); }

TEST(Npy, EveryTruncationIsRefused) {
  const std::string whole = with_shape("(2, 3)", 24);
  EXPECT_EQ(file_error([&] { parse_npy(as_bytes(whole)); }), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(file_error([&] { parse_npy(as_bytes({part.data(), part.size()})); }), "") << size;
  }
}

}  // namespace
}  // namespace tilewise::io
