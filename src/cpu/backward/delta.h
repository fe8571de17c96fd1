// delta = rowsum(O * dO) - dLSE, the preprocessing step of the backward pass.
#pragma once

#include "cpu/common/tile.h"
#include "cpu/simd/conversion.h"
#include "cpu/simd/inner_product.h"
#include "cpu/simd/prefetch.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// True if every row of the sequence sees at most one key: the sequence has no other, or the window
// is that narrow.
inline bool at_most_one_key(const Problem& problem, const Sequence& sequence) {
  return sequence.k_len == 1 || (problem.window_left == 0 && problem.window_right == 0);
}

// Computes delta for rows [first, first + count) of a head. For rows of one key, where O = V, it
// adds in the order in which Policy adds dP. Then dP - delta is exactly zero, and so is dS, however
// large the K is that dS is multiplied with.
//
// delta: the layout of lse
template <class T, class Policy>
void compute_delta(const Problem& problem, const HeadContext& context, const View& delta,
                   std::int64_t first, std::int64_t count) {
  const std::int64_t b = context.sequence.batch;
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t row = context.sequence.q_start + i;
    T sum = T(0);
    with_storage(problem.out.dtype, [&](auto out_storage) {
      with_storage(problem.dout.dtype, [&](auto dout_storage) {
        using Out = decltype(out_storage);
        using Dout = decltype(dout_storage);
        const Out* const out =
            static_cast<const Out*>(problem.out.data) + problem.out.offset(b, context.head, row);
        const Dout* const dout =
            static_cast<const Dout*>(problem.dout.data) + problem.dout.offset(b, context.head, row);
        prefetch_later_row(out, problem.out.row, problem.value_dim);
        prefetch_later_row(dout, problem.dout.row, problem.value_dim);
        sum = at_most_one_key(problem, context.sequence)
                  ? Policy::inner_product(dout, out, problem.value_dim)
                  : inner_product<T>(out, dout, problem.value_dim);
      });
    });
    if (problem.dlse.present()) sum -= load_statistic<T>(problem.dlse, b, context.head, row);
    store_statistic(delta, b, context.head, row, sum);
  }
}

// Computes delta of a head again, multiplied by a power of two, where rowsum(O * dO) has
// overflowed.
template <class T>
void compute_delta_in_unit(const Problem& problem, const Sequence& sequence, std::int64_t head,
                           T unit, const View& delta) {
  const std::int64_t b = sequence.batch;
  for (std::int64_t row = sequence.q_start; row < sequence.q_start + sequence.q_len; ++row) {
    T sum = T(0);
    with_storage(problem.out.dtype, [&](auto out_storage) {
      with_storage(problem.dout.dtype, [&](auto dout_storage) {
        using Out = decltype(out_storage);
        using Dout = decltype(dout_storage);
        const Out* const out =
            static_cast<const Out*>(problem.out.data) + problem.out.offset(b, head, row);
        const Dout* const dout =
            static_cast<const Dout*>(problem.dout.data) + problem.dout.offset(b, head, row);
        for (std::int64_t c = 0; c < problem.value_dim; ++c)
          sum += math::load<T>(out[c]) * unit * math::load<T>(dout[c]);
      });
    });
    if (problem.dlse.present()) sum -= load_statistic<T>(problem.dlse, b, head, row) * unit;
    store_statistic(delta, b, head, row, sum);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
