// The parts of the CPU kernels that the tests of this folder call: one table of functions for each
// instruction set, as TargetKernels is for whole kernels. probes.cc is compiled with the flags of
// its instruction set and includes nothing of the standard library; the tests are compiled for any
// machine and call only the tables of instruction sets that it has.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace tilewise::cpu {

// `count` rows of `width` numbers from row 0 of `view` on.
struct ProbeRows {
  const problem::View* view;
  std::int64_t count;
  std::int64_t width;
};

// T: float or double. A panel has panel_width lanes: panel_registers registers of `lanes` lanes.
template <class T>
struct TypedProbes {
  std::int64_t lanes;
  std::int64_t panel_registers;
  std::int64_t panel_width;

  // simd/gemm.h; c: (m_count rounded up to gemm_rows, panel_width) for packed columns
  void (*gemm)(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
               std::int64_t depth, T* c);
  void (*gemm_one_register)(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                            std::int64_t depth, T* c);
  void (*gemm_packed)(const T* a, std::int64_t m_count, const T* b, std::int64_t depth, T* c,
                      const T* factor);  // factor: (panel_width) or nullptr
  void (*gemm_wide)(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                    std::int64_t stride, T* c, std::int64_t registers, std::int64_t depth,
                    bool accumulate);

  // common/gemm_masked.h; begin, end: (panel_registers)
  void (*gemm_masked)(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                      std::int64_t depth, const std::int64_t* begin, const std::int64_t* end, T* c);
  void (*gemm_packed_masked)(const T* a, std::int64_t m_count, const T* b, std::int64_t depth,
                             const std::int64_t* begin, const std::int64_t* end, T* c);

  // common/accumulate.h: adds a product in which a number counts only in the lanes that see it
  //
  // seen: (depth, panel_width), integers of the size of T: all bits or none
  void (*gemm_packed_seen)(const T* a, std::int64_t m_count, const T* b, std::int64_t depth,
                           const void* seen, T* c);

  // simd/packing.h, simd/packed_columns.h
  const T* (*stage_rows)(ProbeRows rows, T* stage);
  void (*pack_panel)(ProbeRows rows, T factor, T* panel);
  void (*unpack_panel)(ProbeRows rows, const T* factor, const T* panel);
  bool (*pack_columns)(ProbeRows rows, T* data);  // returns whether all rows are finite
  std::int64_t (*packed_size)(std::int64_t width);
  std::int64_t packed_block;  // elements of a block of columns

  // simd/exact_multiply.h: `lanes` numbers
  void (*multiply_exactly)(const T* from, T factor, T* to);

  // simd/conversion.h: `lanes` numbers of a dtype
  void (*load)(std::int32_t dtype, const void* from, T* to);
  void (*store)(std::int32_t dtype, const T* from, void* to);

  // simd/finite.h, simd/inner_product.h
  bool (*all_finite)(const T* panel, std::int64_t count, std::int64_t lanes);
  bool (*row_is_finite)(const T* row, std::int64_t width);
  T (*inner_product)(const T* a, const T* b, std::int64_t count);

  // forward/softmax.h; scores: (keys, panel_width); max, sum, rescale: (panel_width)
  void (*softmax_step)(std::int64_t keys, T scale_log2, T* scores, T* max, T* sum, T* rescale);
  // decode/softmax.h; scores: (decode_keys). Returns the factor of the output so far.
  T (*softmax_row)(T scale_log2, T* scores, T* max, T* sum);
  // decode/lane_sums.h; registers: (lanes, lanes), to: (lanes)
  void (*sum_lanes)(const T* registers, T* to);
};

struct Probes {
  const char* target;
  bool fused;  // multiply_add() rounds once
  std::int64_t gemm_rows;
  std::int64_t decode_keys;
  std::int64_t (*split_length)(std::int64_t keys);
  std::int64_t (*split_count)(std::int64_t keys);
  TypedProbes<float> of_float;
  TypedProbes<double> of_double;
};

// bf16 pairs and vdpbf16ps (avx512_bf16/, simd/packing_bf16.h). Operands are bits of bf16.
struct Bf16Probes {
  std::int64_t panel_width;
  std::int64_t gemm_rows;
  std::int64_t packed_block;
  std::int64_t (*packed_size)(std::int64_t width);
  void (*stage_rows)(ProbeRows rows, std::uint32_t* stage);
  void (*pack_panel)(ProbeRows rows, float factor, std::uint32_t* panel);
  bool (*pack_columns)(ProbeRows rows, std::uint32_t* data);
  void (*gemm)(const std::uint32_t* a, std::int64_t a_stride, std::int64_t m_count,
               const std::uint32_t* b, std::int64_t depth, float* c);
  float (*inner_product)(const std::uint16_t* a, const std::uint16_t* b, std::int64_t width);
};

// The instruction sets whose tables are in the program. best_probes() is the best one that this
// machine has; generic_probes() is the one that every machine of its architecture has.
const Probes& best_probes();
const Probes& generic_probes();
const Bf16Probes* bf16_probes();  // nullptr on a machine without AVX512-BF16

}  // namespace tilewise::cpu
