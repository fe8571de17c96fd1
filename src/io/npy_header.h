// The header of an .npy file: a literal of a Python dictionary. Used by npy.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.h"

namespace tilewise::io {

struct NpyHeader {
  ElementType type = ElementType::f32;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Parses {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, keys in any order, followed
// by white space. No other part of Python's syntax is accepted. `name` is the file's, for the
// message. Throws FileError.
NpyHeader parse_npy_header(std::string_view text, const std::string& name);

// Returns the same literal as NumPy writes it, with room for the first size to grow to 21 digits,
// and without the padding.
std::string format_npy_header(const NpyHeader& header);

}  // namespace tilewise::io
