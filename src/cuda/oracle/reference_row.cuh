// One row of attention in double, with every option of the semantics: the oracle of the device, and
// the arithmetic by which rows that the fast kernels flag are recomputed. The gradients of the
// oracle (reference_gradient.cuh) use the same scores.
#pragma once

#include "cuda/tile/element.cuh"
#include "math/float8.h"
#include "math/integer.h"
#include "math/philox.h"
#include "math/score_rule.h"
#include "math/softmax_state.h"
#include "problem/sequence.h"

namespace tilewise::cuda {

using problem::Problem;
using problem::Sequence;

inline constexpr int kRowThreads = 128;  // of a block; also the number of keys at a time
inline constexpr int kRowColumns =
    4;  // of out in a thread's registers; more columns need another pass

// Products that are summed before they are added to the sum of a row. Small terms lose digits
// beside a large sum, and where all values are positive, each of them in the same direction.
inline constexpr int kSumKeys = 32;

struct RowMemory {
  double scores[kRowThreads];  // then the probs of these keys
  double warps[kRowThreads / 32];
};

// A team is the kRowThreads threads that compute a row, and their memory. Here it is a whole block.
struct BlockTeam {
  RowMemory& memory;

  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() const { __syncthreads(); }
};

// Adds the products of `width` elements of two rows in their order. Both have the dtype of `a`.
__device__ __forceinline__ double dot(const problem::View& a, std::int64_t a_offset,
                                      const problem::View& b, std::int64_t b_offset,
                                      std::int64_t width) {
  return with_elements(a, [&](const auto* a_elements) {
    const auto* const b_elements = static_cast<decltype(a_elements)>(b.data) + b_offset;
    double sum = 0;
#pragma unroll 8
    for (std::int64_t c = 0; c < width; ++c)
      sum += math::load<double>(a_elements[a_offset + c]) * math::load<double>(b_elements[c]);
    return sum;
  });
}

// Reads an element of fp8, or of a wider type that q has beside keys of fp8.
__device__ __forceinline__ double read_fp8_or_wider(const problem::View& view,
                                                    std::int64_t offset) {
  switch (view.dtype) {
    case TILEWISE_E4M3:
      return math::load<double>(static_cast<const math::Float8E4M3*>(view.data)[offset]);
    case TILEWISE_E5M2:
      return math::load<double>(static_cast<const math::Float8E5M2*>(view.data)[offset]);
    default:
      return read_element(view, offset);
  }
}

// A row of a query head, and the keys that it sees. Without kPaged the cache has no pages: fast
// kernels, which recompute rows with this code, have no registers for the lookup.
template <bool kPaged>
struct RowOf {
  const Problem& problem;
  const Sequence& sequence;
  std::int64_t head;
  std::int64_t row;  // in the sequence

  __device__ std::int64_t batch_of(bool packed) const { return packed ? 0 : sequence.batch; }

  // Without slices, the range of visible keys (causal and window).
  __device__ math::KeyRange keys() const {
    if (problem.slices.present()) return {0, sequence.k_len};
    const math::Band band = math::window_band(sequence.q_len, sequence.k_len, sequence.diagonal,
                                              problem.window_left, problem.window_right);
    const math::KeyRange range = math::visible_keys(band, row);
    return {math::max(range.begin, 0), range.end};
  }

  __device__ bool in_slice(std::int64_t s, std::int64_t key) const {
    const problem::IndexView& slices = problem.slices;
    const std::int64_t slice_head = slices.columns == 6 ? slices.at(s, 5) : -1;
    if (slice_head != -1 && slice_head != head) return false;
    std::int64_t slice[5];
    for (int c = 0; c < 5; ++c) slice[c] = slices.at(s, c);
    const math::KeyRange range = math::visible_keys(
        math::slice_band(slice, problem.q_rows, problem.k_rows, sequence.k_len), row);
    return key >= range.begin && key < range.end;
  }

  __device__ bool visible(std::int64_t key) const {
    if (problem.mask.present()) {
      const std::int64_t offset = problem.mask.offset(sequence.batch, head, row, key);
      if (static_cast<const std::uint8_t*>(problem.mask.data)[offset] == 0) return false;
    }
    if (!problem.slices.present()) return true;
    for (std::int64_t s = 0; s < problem.slices.count; ++s) {
      if (in_slice(s, key)) return true;
    }
    return false;
  }

  // Where the row lies in a tensor of the query side, and a key in one of the key side.
  __device__ std::int64_t query_offset(const problem::View& view) const {
    return view.offset(batch_of(problem.q_packed), head, sequence.q_start + row);
  }
  __device__ std::int64_t key_offset(const problem::View& view, std::int64_t key) const {
    const std::int64_t batch = batch_of(problem.k_packed);
    const std::int64_t kv_head = head / problem.group;
    if constexpr (kPaged) return problem.key_offset(view, batch, kv_head, sequence.k_start + key);
    return view.offset(batch, kv_head, sequence.k_start + key);
  }

  // -inf if the key is masked. Nothing of a masked key is read. For a visible key, `derivative`, if
  // given, becomes the derivative of the score with respect to scale * q.k.
  __device__ double score(std::int64_t key, double* derivative = nullptr) const {
    if (!visible(key)) return -math::Limits<double>::kInfinity;
    double score = problem.scale * (problem::is_fp8(problem.dtype)
                                        ? fp8_product(key)
                                        : dot(problem.q, query_offset(problem.q), problem.k,
                                              key_offset(problem.k, key), problem.head_dim));
    if (derivative != nullptr) *derivative = 1;
    if (problem.softcap > 0) {
      if (derivative != nullptr) *derivative = math::softcap_derivative(score, problem.softcap);
      score = math::softcapped(score, problem.softcap);
    }
    if (problem.bias.present()) {
      score += read_element(problem.bias, problem.bias.offset(sequence.batch, head, row, key));
    }
    if (problem.alibi_slopes.present()) {
      const std::int64_t slope = problem.alibi_slopes.offset(sequence.batch, head, 0);
      const double distance = static_cast<double>(row + sequence.diagonal - key);
      score += math::alibi(read_element(problem.alibi_slopes, slope), distance);
    }
    return score;
  }

  // q.k where k is fp8, and a value, with their scales.
  __device__ double fp8_product(std::int64_t key) const {
    const std::int64_t q = query_offset(problem.q);
    const std::int64_t k = key_offset(problem.k, key);
    double sum = 0;
    for (std::int64_t c = 0; c < problem.head_dim; ++c)
      sum += read_fp8_or_wider(problem.q, q + c) * read_fp8_or_wider(problem.k, k + c);
    return sum * descale(problem.q, sequence.q_start + row) *
           descale(problem.k, sequence.k_start + key);
  }
  __device__ double fp8_value(std::int64_t key, std::int64_t column) const {
    return read_fp8_or_wider(problem.v, key_offset(problem.v, key) + column) *
           descale(problem.v, sequence.k_start + key);
  }
  __device__ double descale(const problem::View& view, std::int64_t own_row) const {
    return static_cast<double>(
        problem.descale(view, sequence.batch, head / problem.group, own_row));
  }

  __device__ double dropout_factor(std::int64_t key) const {
    if (problem.dropout_p == 0) return 1;
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    const problem::DropoutOrigin origin = problem::dropout_origin(problem, sequence.batch, head);
    return math::dropout_keeps(rule, origin.head_index, origin.row + row, origin.key + key)
               ? rule.keep_scale
               : 0;
  }

  __device__ double sink() const {
    if (!problem.sink.present()) return -math::Limits<double>::kInfinity;
    return read_element(problem.sink, problem.sink.offset(0, head, 0));
  }
};
using Row = RowOf<false>;

// Reduces a number of each thread to the maximum or the sum. Every thread gets the result.
template <bool kMaximum, class Team>
__device__ double reduce(double x, const Team& team) {
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(~0u, x, step);
    x = kMaximum ? math::maximum(other, x) : x + other;
  }
  double(&warps)[kRowThreads / 32] = team.memory.warps;
  team.sync();
  if (team.thread() % 32 == 0) warps[team.thread() / 32] = x;
  team.sync();
  x = warps[0];
  for (int w = 1; w < kRowThreads / 32; ++w) {
    x = kMaximum ? math::maximum(warps[w], x) : x + warps[w];
  }
  return x;
}

// Returns sum + P V of a column. `value` returns the column's value of a key.
//   probs (count): -1 for a masked key
template <class Value>
__device__ __forceinline__ double add_products(double sum, const double* probs, std::int64_t count,
                                               const Value& value) {
  double part = 0;
#pragma unroll 4
  for (std::int64_t n = 0; n < count; ++n) {
    if (!(probs[n] < 0)) part += probs[n] * value(n);
    if (n % kSumKeys != kSumKeys - 1) continue;
    sum += part;
    part = 0;
  }
  return sum + part;
}

// Online softmax over kRowThreads keys at a time. A thread computes the score of one key, then adds
// P V to columns column_begin + thread + kRowThreads * c of out.
//   out (kRowColumns)
template <bool kPaged, class Team>
__device__ math::SoftmaxState<double> attend(const RowOf<kPaged>& row, std::int64_t column_begin,
                                             const Team& team, double* out) {
  const Problem& problem = row.problem;
  double(&scores)[kRowThreads] = team.memory.scores;
  const math::KeyRange keys = row.keys();
  const std::int64_t v = problem.v.offset(row.batch_of(problem.k_packed), row.head / problem.group,
                                          row.sequence.k_start);
  math::SoftmaxState<double> state = math::empty_state<double>();
  for (int c = 0; c < kRowColumns; ++c) out[c] = 0;
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kRowThreads) {
    const std::int64_t key = begin + team.thread();
    const double minus_infinity = -math::Limits<double>::kInfinity;
    const double score = key < keys.end ? row.score(key) : minus_infinity;
    const double max = math::maximum(reduce<true>(score, team), state.max);
    const double prob = math::prob(score, math::anchor(max));
    const double factor = math::prob(state.max, math::anchor(max));
    state = {max, math::combine(factor, state.sum) + reduce<false>(prob, team)};
    // A masked key gets -1. A visible key with prob 0 multiplies its value, which may be NaN.
    scores[team.thread()] =
        score == minus_infinity ? -1 : prob * (key < keys.end ? row.dropout_factor(key) : 0);
    team.sync();
    const std::int64_t count = math::min(kRowThreads, keys.end - begin);
#pragma unroll
    for (int c = 0; c < kRowColumns; ++c) {
      const std::int64_t column = column_begin + team.thread() + kRowThreads * c;
      if (column >= problem.value_dim) continue;
      const double before = factor * out[c];
      if (problem::is_fp8(problem.dtype)) {
        out[c] = add_products(before, scores, count,
                              [&](std::int64_t n) { return row.fp8_value(begin + n, column); });
        continue;
      }
      out[c] = with_elements(problem.v, [&, before](const auto* elements) {
        if constexpr (kPaged) {
          return add_products(before, scores, count, [&](std::int64_t n) {
            return math::load<double>(elements[row.key_offset(problem.v, begin + n) + column]);
          });
        } else {
          const auto* const values = elements + v + begin * problem.v.row + column;
          return add_products(before, scores, count, [&](std::int64_t n) {
            return math::load<double>(values[n * problem.v.row]);
          });
        }
      });
    }
    team.sync();
    if (state.sum != state.sum) break;  // the row is NaN, whatever follows
  }
  return state;
}

// Computes out and lse of a row, with all threads of a team. GQA and MQA: `group` query heads share
// a kv head.
template <bool kPaged, class Team>
__device__ void compute_row(const RowOf<kPaged>& row, const Team& team) {
  const Problem& problem = row.problem;
  const std::int64_t batch = row.batch_of(problem.q_packed);
  const std::int64_t q_row = row.sequence.q_start + row.row;
  for (std::int64_t first = 0; first < problem.value_dim; first += kRowThreads * kRowColumns) {
    double out[kRowColumns];
    const math::SoftmaxState<double> state = attend(row, first, team, out);
    const math::Finalised<double> finalised = math::finalise(state, row.sink());
    for (int c = 0; c < kRowColumns; ++c) {
      const std::int64_t column = first + team.thread() + kRowThreads * c;
      if (column >= problem.value_dim) break;
      write_element(problem.out, problem.out.offset(batch, row.head, q_row, column),
                    out[c] * finalised.scale);
    }
    if (first == 0 && team.thread() == 0 && problem.lse.present()) {
      write_element(problem.lse, problem.lse.offset(batch, row.head, q_row), finalised.lse);
    }
  }
}

}  // namespace tilewise::cuda
