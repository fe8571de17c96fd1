// Online softmax (Milakov and Gimelshein, arXiv 1805.02867, Algorithm 3). The maximum and the sum
// of a row are found in one pass over its scores: each score is a state (score, 1) that is merged
// into the state of the row. A second pass forms P V from recomputed scores. No S is stored (Rabe
// and Staats, arXiv 2112.05682: O(1) memory per row), but every query reads every key again.
#include "math/integer.h"
#include "reference/rung.h"

namespace tilewise::reference {
namespace {

inline constexpr std::int64_t kKeysAtOnce = 256;  // keys whose visibility is found at once

template <class T>
struct RowBuffers {
  std::int64_t widest;
  T* query;       // (D)
  T* key;         // (D)
  T* value;       // (Dv)
  T* out;         // (Dv)
  double* total;  // (Dv)
  T* dout;        // (Dv)
  T* dquery;      // (D)
  T* dkey;        // (D)
  T* dvalue;      // (Dv)
  T* dkeys;       // (Sk, D), backward: sums of the group, in slow memory
  T* dvalues;     // (Sk, Dv)

  static RowBuffers carve(const Problem& problem, Arena& arena) {
    const Checked head_dim = {problem.head_dim};
    const Checked value_dim = {problem.value_dim};
    const Checked k_rows = {problem.operation == problem::Operation::kBackward ? problem.max_k : 0};
    RowBuffers buffers;
    buffers.widest = kKeysAtOnce;
    buffers.query = arena.take<T>(head_dim);
    buffers.key = arena.take<T>(head_dim);
    buffers.value = arena.take<T>(value_dim);
    buffers.out = arena.take<T>(value_dim);
    buffers.total = arena.take<double>(value_dim);
    buffers.dout = arena.take<T>(value_dim);
    buffers.dquery = arena.take<T>(head_dim);
    buffers.dkey = arena.take<T>(head_dim);
    buffers.dvalue = arena.take<T>(value_dim);
    buffers.dkeys = arena.take<T>(k_rows * head_dim);
    buffers.dvalues = arena.take<T>(k_rows * value_dim);
    return buffers;
  }
};

// Calls function(key, score, derivative of the score rule) for every key that `row` sees, in order,
// after loading the row of the key.
template <class T, class Counter, class Function>
void for_each_score(const Group<T, Counter>& group, const Head<T, Counter>& head, std::int64_t row,
                    const RowBuffers<T>& b, const Function& function) {
  const Problem& problem = group.problem;
  for (std::int64_t first = 0; first < group.k_len(); first += kKeysAtOnce) {
    const KeyRange keys = {first, math::min(first + kKeysAtOnce, group.k_len())};
    head.mark_visible(row, keys);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (!head.visible(keys, j)) continue;
      group.load_keys(problem.k, j, 1, problem.head_dim, b.key);
      T scaled;
      const T score = head.score(row, j, dot(b.query, b.key, problem.head_dim), &scaled);
      if (score != kMaskedScore<T>) function(j, score, scaled);
    }
  }
}

struct OnlineSoftmaxForward {
  static constexpr Algorithm kAlgorithm = Algorithm::kOnlineSoftmax;
  template <class T>
  using Buffers = RowBuffers<T>;

  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t) {
    const Problem& problem = group.problem;
    for (std::int64_t g = 0; g < group.size(); ++g) {
      const auto head = group.head(g);
      for (std::int64_t i = 0; i < group.q_len(); ++i) {
        group.load_queries(g, i, 1, b.query);
        // The state is in double: where scores rise from key to key (ALiBi), every step rescales
        // the sum, and all these factors may be rounded in the same direction. The state of an
        // earlier call is merged at the end: beside its maximum, which is LSE, probs of equal
        // scores are not 1.
        const math::SoftmaxState<T> first = group.first_state(g, i, b.out);
        auto sums = math::empty_state<double>();
        for_each_score(group, head, i, b, [&](std::int64_t, T score, T) {
          sums = math::merge(sums, math::SoftmaxState<double>{score, 1}).state;
        });
        sums = math::merge(math::SoftmaxState<double>{first.max, first.sum}, sums).state;
        const auto finalised = math::finalise(sums, static_cast<double>(head.sink()));

        // The total is in double as well: without tiles, a thousand terms and more are added one by
        // one. So are its probs, since those of the sum are: an error of T's exp would not cancel.
        // They are normalised first: no sum of them overflows.
        const double kept = math::prob<double>(first.max, math::anchor(sums.max)) * finalised.scale;
        for (std::int64_t c = 0; c < problem.value_dim; ++c) b.total[c] = kept * b.out[c];
        for_each_score(group, head, i, b, [&](std::int64_t j, T score, T) {
          const double prob = math::prob<double>(score, math::anchor(sums.max)) * finalised.scale;
          group.load_keys(problem.v, j, 1, problem.value_dim, b.value);
          add_scaled(prob * head.dropout_factor(i, j), b.value, problem.value_dim, b.total);
        });
        for (std::int64_t c = 0; c < problem.value_dim; ++c) b.out[c] = static_cast<T>(b.total[c]);
        group.memory.store(problem.out, group.query_rows(g, i, 1), problem.value_dim, b.out);
        group.store_lse(g, i, static_cast<T>(finalised.lse));
      }
    }
  }
};

struct OnlineSoftmaxBackward {
  static constexpr Algorithm kAlgorithm = Algorithm::kOnlineSoftmax;
  template <class T>
  using Buffers = RowBuffers<T>;

  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t) {
    const Problem& problem = group.problem;
    set_zero(b.dkeys, group.k_len() * problem.head_dim);
    set_zero(b.dvalues, group.k_len() * problem.value_dim);
    for (std::int64_t g = 0; g < group.size(); ++g) {
      const auto head = group.head(g);
      for (std::int64_t i = 0; i < group.q_len(); ++i) run_row(group, head, g, i, b);
    }
    const Rows keys = group.key_rows(0, group.k_len());
    group.publish_gradient(problem.dk, keys, problem.head_dim, b.dkeys);
    group.publish_gradient(problem.dv, keys, problem.value_dim, b.dvalues);
  }

 private:
  // Computes dQ of one query, and adds its part to dK and dV of every key that it sees.
  template <class T, class Counter>
  static void run_row(const Group<T, Counter>& group, const Head<T, Counter>& head, std::int64_t g,
                      std::int64_t i, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const Rows row = group.query_rows(g, i, 1);
    group.memory.load(problem.q, row, problem.head_dim, b.query);
    group.memory.load(problem.out, row, problem.value_dim, b.out);
    group.memory.load(problem.dout, row, problem.value_dim, b.dout);
    const T lse = group.load_lse(g, i);
    const T delta = group.delta(g, i, b.out, b.dout);
    set_zero(b.dquery, problem.head_dim);
    for_each_score(group, head, i, b, [&](std::int64_t j, T score, T scaled) {
      group.load_keys(problem.v, j, 1, problem.value_dim, b.value);
      const T prob = math::probability(score, lse);
      const T dropout = head.dropout_factor(i, j);
      const T dprob = dot(b.dout, b.value, problem.value_dim) * dropout;
      const T dscore =
          head.product_gradient(i, j, scaled, math::score_gradient(prob, dprob, delta)) *
          head.scale();
      add_scaled(dscore, b.key, problem.head_dim, b.dquery);
      add_to_key(group, j, b, dscore, prob * dropout);
    });
    group.store_gradient(problem.dq, row, problem.head_dim, b.dquery);
  }

  // dK_j += dscore * Q_i, dV_j += prob * dO_i, through slow memory.
  template <class T, class Counter>
  static void add_to_key(const Group<T, Counter>& group, std::int64_t j, const Buffers<T>& b,
                         T dscore, T prob) {
    const Problem& problem = group.problem;
    const std::int64_t size = problem::dtype_size(problem.dtype);
    T* const dkey = b.dkeys + j * problem.head_dim;
    T* const dvalue = b.dvalues + j * problem.value_dim;
    group.memory.load_array(dkey, problem.head_dim, size, b.dkey);
    group.memory.load_array(dvalue, problem.value_dim, size, b.dvalue);
    add_scaled(dscore, b.query, problem.head_dim, b.dkey);
    add_scaled(prob, b.dout, problem.value_dim, b.dvalue);
    group.memory.store_array(b.dkey, problem.head_dim, size, dkey);
    group.memory.store_array(b.dvalue, problem.value_dim, size, dvalue);
  }
};

}  // namespace

constinit const problem::Kernel kOnlineSoftmaxForward = make_kernel<OnlineSoftmaxForward>(
    "online_softmax",
    "two passes over the keys for each query: online maximum and sum, then P V; no S stored");
constinit const problem::Kernel kOnlineSoftmaxBackward = make_kernel<OnlineSoftmaxBackward>(
    "online_softmax",
    "query by query, probabilities recomputed from LSE; dK and dV accumulated in slow memory");

}  // namespace tilewise::reference
