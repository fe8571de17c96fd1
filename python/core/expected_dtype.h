// What a message says that an argument's dtype must be. Shared by all bindings.
#pragma once

#include <string_view>

namespace tilewise::python {

inline const char* expected_dtype(std::string_view argument) {
  struct Row {
    std::string_view argument;
    const char* text;
  };
  constexpr Row kRows[] = {
      {"q", "float64, float32, bfloat16, float16, float8_e4m3fn or float8_e5m2"},
      {"k", "float64, float32, bfloat16, float16, float8_e4m3fn or float8_e5m2"},
      {"v", "float64, float32, bfloat16, float16, float8_e4m3fn or float8_e5m2"},
      {"mask", "bool, or uint8 where 0 hides a key"},
      {"bias", "q's dtype or float32"},
      {"dbias", "the dtype of bias"},
      {"alibi_slopes", "float32"},
      {"sink", "float32"},
      {"slices", "int64"},
      {"parts", "int64"},
      {"cu_seqlens_q", "int32 or int64"},
      {"cu_seqlens_k", "int32 or int64"},
      {"seqused_q", "int32 or int64"},
      {"seqused_k", "int32 or int64"},
      {"page_table", "int32"},
      {"phi", "float32"},
      {"q_descale", "float32"},
      {"k_descale", "float32"},
      {"v_descale", "float32"},
      {"lse", "float32 (float64 for float64 inputs)"},
      {"dlse", "float32 (float64 for float64 inputs)"},
      {"dsink", "float32 (float64 for float64 inputs)"},
      {"dalibi_slopes", "float32 (float64 for float64 inputs)"},
      {"workspace", "a dtype that the other arguments may have, or uint8"},
  };
  for (const Row& row : kRows) {
    if (row.argument == argument) return row.text;
  }
  return "float64, float32, bfloat16 or float16";
}

// Whether the argument may be an array of bytes: a kernel reads a mask byte by byte, and hides a
// key where the byte is 0.
inline bool takes_bytes(std::string_view argument) {
  return argument == "mask" || argument == "workspace";
}

}  // namespace tilewise::python
