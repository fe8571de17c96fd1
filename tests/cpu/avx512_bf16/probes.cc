// See cpu/probes.h. Compiled for AVX512-BF16.
#include "cpu/probes.h"

#include "cpu/avx512_bf16/dot.h"
#include "cpu/simd/packing_bf16.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

constexpr int kWidth = kWideColumns * Vec<Bf16Pair>::kLanes;

RowBlock row_block(ProbeRows rows) { return {rows.view, 0, 0, 0, rows.count, rows.width}; }

}  // namespace

extern const Bf16Probes kBf16Probes;
constinit const Bf16Probes kBf16Probes = {
    kWidth,
    kGemmRows,
    kPackedBlock<Bf16Pair>,
    packed_size<Bf16Pair>,
    [](ProbeRows rows, std::uint32_t* stage) { stage_rows<Bf16Pair>(row_block(rows), stage); },
    [](ProbeRows rows, float factor, std::uint32_t* panel) {
      pack_panel<Bf16Pair, kWidth>(row_block(rows), factor, panel);
    },
    [](ProbeRows rows, std::uint32_t* data) {
      return pack_columns<Bf16Pair>(row_block(rows), 1.0f, data).all_finite();
    },
    [](const std::uint32_t* a, std::int64_t a_stride, std::int64_t m_count, const std::uint32_t* b,
       std::int64_t depth, float* c) {
      gemm<Bf16Pair, kWideColumns>({a, a_stride}, m_count, b, depth, c);
    },
    [](const std::uint16_t* a, const std::uint16_t* b, std::int64_t width) {
      return bf16_inner_product(reinterpret_cast<const math::BFloat16*>(a),
                                reinterpret_cast<const math::BFloat16*>(b), width);
    },
};

}  // namespace tilewise::cpu::TILEWISE_TARGET
