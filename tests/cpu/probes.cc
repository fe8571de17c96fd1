// See probes.h. Compiled once for each instruction set, with its flags and TILEWISE_TARGET.
#include "cpu/probes.h"

#include "cpu/common/accumulate.h"
#include "cpu/common/gemm_masked.h"
#include "cpu/decode/plan.h"
#include "cpu/decode/softmax.h"
#include "cpu/forward/softmax.h"
#include "cpu/simd/finite.h"
#include "cpu/simd/gemm.h"
#include "cpu/simd/inner_product.h"
#include "cpu/simd/packed_columns.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

template <class T>
inline constexpr std::int64_t kWidth = kWideColumns* Vec<T>::kLanes;

RowBlock row_block(ProbeRows rows) { return {rows.view, 0, 0, 0, rows.count, rows.width}; }

template <class T>
ActiveRegisters<kWideColumns> active_registers(const std::int64_t* begin, const std::int64_t* end) {
  ActiveRegisters<kWideColumns> active;
  for (int n = 0; n < kWideColumns; ++n) {
    active.begin[n] = begin[n];
    active.end[n] = end[n];
  }
  active.all = false;
  return active;
}

template <class T, int kColumns>
void probe_gemm(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                std::int64_t depth, T* c) {
  gemm<T, kColumns, kWidth<T>>({a, a_stride}, m_count, b, depth, c);
}

template <class T>
void probe_gemm_packed(const T* a, std::int64_t m_count, const T* b, std::int64_t depth, T* c,
                       const T* factor) {
  Vec<T> factors[kWideColumns];
  for (int n = 0; factor != nullptr && n < kWideColumns; ++n)
    factors[n] = Vec<T>::load(factor + n * Vec<T>::kLanes);
  gemm_packed<T, kWideColumns>(a, m_count, b, depth, c, factor == nullptr ? nullptr : factors);
}

template <class T>
void probe_gemm_wide(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                     std::int64_t stride, T* c, std::int64_t registers, std::int64_t depth,
                     bool accumulate) {
  if (accumulate) {
    gemm_wide<T, LeftOperand::kRowsAccumulate>({a, a_stride}, m_count, {b, stride, c, stride},
                                               registers, depth);
  } else {
    gemm_wide<T>({a, a_stride}, m_count, {b, stride, c, stride}, registers, depth);
  }
}

template <class T>
void probe_gemm_masked(const T* a, std::int64_t a_stride, std::int64_t m_count, const T* b,
                       std::int64_t depth, const std::int64_t* begin, const std::int64_t* end,
                       T* c) {
  gemm_masked<T, kWideColumns, kWidth<T>>({a, a_stride}, m_count, b, depth,
                                          active_registers<T>(begin, end), c, nullptr);
}

template <class T>
void probe_gemm_packed_masked(const T* a, std::int64_t m_count, const T* b, std::int64_t depth,
                              const std::int64_t* begin, const std::int64_t* end, T* c) {
  gemm_packed_masked<T, kWideColumns, kWidth<T>>(
      a, m_count, b, depth, active_registers<T>(begin, end), c, nullptr, nullptr);
}

template <class T>
void probe_gemm_packed_seen(const T* a, std::int64_t m_count, const T* b, std::int64_t depth,
                            const void* seen, T* c) {
  const PackedColumns<T> columns = {
      {nullptr, 0, 0, 0, depth, m_count}, a, std::numeric_limits<T>::infinity()};
  Vec<T> factor[kWideColumns];
  for (Vec<T>& x : factor) x = Vec<T>(T(1));
  accumulate<T, kWideColumns, static_cast<int>(kWidth<T>)>(
      columns, 0, depth, all_active<kWideColumns>(depth), b, factor,
      {static_cast<const typename BitsOf<T>::Word*>(seen), false}, c);
}

template <class T>
void probe_softmax_step(std::int64_t keys, T scale_log2, T* scores, T* max, T* sum, T* rescale) {
  Vec<T> factors[kWideColumns];
  softmax_step<T, kWideColumns, static_cast<int>(kWidth<T>)>(
      keys, math::ScaleLog2<Vec<T>>(Vec<T>(scale_log2)), scores, max, sum, factors);
  for (int n = 0; n < kWideColumns; ++n) factors[n].store(rescale + n * Vec<T>::kLanes);
}

template <class T>
T probe_softmax_row(T scale_log2, T* scores, T* max, T* sum) {
  return softmax_row<T>(scores, math::ScaleLog2<Vec<T>>(Vec<T>(scale_log2)), max, sum);
}

template <class T>
void probe_sum_lanes(const T* registers, T* to) {
  Vec<T> sums[Vec<T>::kLanes];
  for (int i = 0; i < Vec<T>::kLanes; ++i) sums[i] = Vec<T>::load(registers + i * Vec<T>::kLanes);
  sum_lanes<T>(sums).store(to);
}

template <class T>
constexpr TypedProbes<T> typed_probes() {
  TypedProbes<T> probes = {};
  probes.lanes = Vec<T>::kLanes;
  probes.panel_registers = kWideColumns;
  probes.panel_width = kWidth<T>;
  probes.gemm = probe_gemm<T, kWideColumns>;
  probes.gemm_one_register = probe_gemm<T, 1>;
  probes.gemm_packed = probe_gemm_packed<T>;
  probes.gemm_wide = probe_gemm_wide<T>;
  probes.gemm_masked = probe_gemm_masked<T>;
  probes.gemm_packed_masked = probe_gemm_packed_masked<T>;
  probes.gemm_packed_seen = probe_gemm_packed_seen<T>;
  probes.stage_rows = [](ProbeRows rows, T* stage) {
    return stage_rows<T>(row_block(rows), stage).data;
  };
  probes.pack_panel = [](ProbeRows rows, T factor, T* panel) {
    pack_panel<T, static_cast<int>(kWidth<T>)>(row_block(rows), factor, panel);
  };
  probes.unpack_panel = [](ProbeRows rows, const T* factor, const T* panel) {
    unpack_panel<T, static_cast<int>(kWidth<T>)>(row_block(rows), factor, panel);
  };
  probes.pack_columns = [](ProbeRows rows, T* data) {
    return pack_columns<T>(row_block(rows), T(1), data).all_finite();
  };
  probes.packed_size = packed_size<T>;
  probes.packed_block = kPackedBlock<T>;
  probes.load = [](std::int32_t dtype, const void* from, T* to) {
    with_storage(dtype, [&](auto storage) {
      load_converted<T>(static_cast<const decltype(storage)*>(from)).store(to);
    });
  };
  probes.store = [](std::int32_t dtype, const T* from, void* to) {
    with_storage(dtype, [&](auto storage) {
      store_converted(Vec<T>::load(from), static_cast<decltype(storage)*>(to));
    });
  };
  probes.multiply_exactly = [](const T* from, T factor, T* to) {
    multiply_exactly(Vec<T>::load(from), factor).store(to);
  };
  probes.all_finite = all_finite<T, static_cast<int>(kWidth<T>)>;
  probes.row_is_finite = [](const T* row, std::int64_t width) {
    return row_is_finite<T>(row, width);
  };
  probes.inner_product = [](const T* a, const T* b, std::int64_t count) {
    return inner_product<T>(a, b, count);
  };
  probes.softmax_step = probe_softmax_step<T>;
  probes.softmax_row = probe_softmax_row<T>;
  probes.sum_lanes = probe_sum_lanes<T>;
  return probes;
}

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

#define TILEWISE_STRING(x) #x
#define TILEWISE_NAME(x) TILEWISE_STRING(x)

}  // namespace

extern const Probes kProbes;
constinit const Probes kProbes = {
    TILEWISE_NAME(TILEWISE_TARGET),
    kFused,
    kGemmRows,
    kDecodeKeys,
    [](std::int64_t keys) { return split_length(keys); },
    [](std::int64_t keys) { return split_count(keys); },
    typed_probes<float>(),
    typed_probes<double>(),
};

#undef TILEWISE_NAME
#undef TILEWISE_STRING

}  // namespace tilewise::cpu::TILEWISE_TARGET
