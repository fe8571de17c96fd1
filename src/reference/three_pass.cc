// Standard attention: all of S = Q K^T, then all of P = softmax(S), then O = P V (FlashAttention,
// arXiv 2205.14135, Algorithm 0; backward: its Algorithm 3). S and P have Sq x Sk elements and live
// in slow memory, which is what all other rungs avoid. In fp64 this is the oracle.
#include "reference/rung.h"

namespace tilewise::reference {
namespace {

// The value of P where the score is masked. It is not 0, so that a masked key, which no row may
// touch, differs from a visible one whose probability underflows.
template <class T>
inline constexpr T kMaskedProb = T(-1);

template <class T>
struct MatrixBuffers {
  std::int64_t widest;
  T* keys;       // (Sk, D)
  T* values;     // (Sk, Dv)
  T* query;      // (D)
  T* dout;       // (Dv)
  T* out;        // (Dv)
  T* part;       // (Dv)
  T* row;        // (Sk), a row of S, P, dP or dS
  T* other_row;  // (Sk)
  T* scores;     // (Sq, Sk)
  T* probs;      // (Sq, Sk)
  T* kept;       // (Sq), with `accumulate`: the prob of the earlier result of a row

  static MatrixBuffers carve(const Problem& problem, Arena& arena) {
    const Checked k_rows = {problem.max_k};
    const Checked matrix = Checked{problem.max_q} * k_rows;
    MatrixBuffers buffers;
    buffers.widest = problem.max_k;
    buffers.keys = arena.take<T>(k_rows * Checked{problem.head_dim});
    buffers.values = arena.take<T>(k_rows * Checked{problem.value_dim});
    buffers.query = arena.take<T>(Checked{problem.head_dim});
    buffers.dout = arena.take<T>(Checked{problem.value_dim});
    buffers.out = arena.take<T>(Checked{problem.value_dim});
    buffers.part = arena.take<T>(Checked{problem.value_dim});
    buffers.row = arena.take<T>(k_rows);
    buffers.other_row = arena.take<T>(k_rows);
    buffers.scores = arena.take<T>(matrix);
    buffers.probs = arena.take<T>(matrix);
    buffers.kept = arena.take<T>(Checked{problem.accumulate ? problem.max_q : 0});
    return buffers;
  }
};

// S <- Q K^T with the score rule, and `scaled` <- scale * Q K^T if given.
template <class T, class Counter>
void compute_scores(const Group<T, Counter>& group, std::int64_t g, const MatrixBuffers<T>& b,
                    T* scaled) {
  const Problem& problem = group.problem;
  const std::int64_t size = problem::dtype_size(problem.dtype);
  const std::int64_t k_len = group.k_len();
  const auto head = group.head(g);
  group.load_keys(problem.k, 0, k_len, problem.head_dim, b.keys);
  for (std::int64_t i = 0; i < group.q_len(); ++i) {
    group.load_queries(g, i, 1, b.query);
    head.score_row(i, {0, k_len}, b.query, b.keys, b.row,
                   scaled == nullptr ? nullptr : b.other_row);
    group.memory.store_array(b.row, k_len, size, b.scores + i * k_len);
    if (scaled != nullptr) group.memory.store_array(b.other_row, k_len, size, scaled + i * k_len);
  }
}

// The three passes over a row of scores: maximum, sum, normalise. Writes the probabilities and
// returns the LSE. The earlier result of a row counts as one more score, its LSE; *kept is its
// probability.
template <class T>
T softmax_row(const T* scores, std::int64_t k_len, T earlier_lse, T sink, T* probs, T* kept) {
  const math::SoftmaxState<T> earlier = math::state_of_result(earlier_lse);
  const T max = math::maximum(row_max(scores, k_len), earlier.max);
  const T of_earlier = math::prob(earlier.max, math::anchor(max));
  const T sum = exponentiate(scores, k_len, max, probs) + of_earlier;
  const auto finalised = math::finalise(math::SoftmaxState<T>{max, sum}, sink);
  for (std::int64_t j = 0; j < k_len; ++j) {
    probs[j] = scores[j] == kMaskedScore<T> ? kMaskedProb<T> : probs[j] * finalised.scale;
  }
  *kept = of_earlier * finalised.scale;
  return finalised.lse;
}

struct ThreePassForward {
  static constexpr Algorithm kAlgorithm = Algorithm::kThreePass;
  template <class T>
  using Buffers = MatrixBuffers<T>;

  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t) {
    for (std::int64_t g = 0; g < group.size(); ++g) {
      compute_scores<T, Counter>(group, g, b, nullptr);
      normalise(group, g, b);
      multiply_values(group, g, b);
    }
  }

 private:
  // P <- softmax(S)
  template <class T, class Counter>
  static void normalise(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const std::int64_t size = problem::dtype_size(group.problem.dtype);
    const std::int64_t k_len = group.k_len();
    const T sink = group.head(g).sink();
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load_array(b.scores + i * k_len, k_len, size, b.row);
      const bool accumulates = group.problem.accumulate;
      const T earlier = accumulates ? group.load_lse(g, i) : kMaskedScore<T>;
      T kept;
      group.store_lse(g, i, softmax_row(b.row, k_len, earlier, sink, b.other_row, &kept));
      // An empty row has no earlier result.
      if (accumulates) b.kept[i] = earlier == kMaskedScore<T> ? kMaskedProb<T> : kept;
      group.memory.store_array(b.other_row, k_len, size, b.probs + i * k_len);
    }
  }

  // O <- P V
  template <class T, class Counter>
  static void multiply_values(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    group.load_keys(problem.v, 0, k_len, problem.value_dim, b.values);
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load_array(b.probs + i * k_len, k_len, problem::dtype_size(problem.dtype),
                              b.row);
      const Rows row = group.query_rows(g, i, 1);
      if (problem.accumulate && b.kept[i] != kMaskedProb<T>) {
        group.memory.load(problem.out, row, problem.value_dim, b.out);
        scale_row(b.kept[i], problem.value_dim, b.out);
      } else {
        set_zero(b.out, problem.value_dim);
      }
      for_each_tile(k_len, kKeysPerSum, [&](KeyRange keys) {
        set_zero(b.part, problem.value_dim);
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          if (b.row[j] == kMaskedProb<T>) continue;
          add_scaled(b.row[j] * head.dropout_factor(i, j), b.values + j * problem.value_dim,
                     problem.value_dim, b.part);
        }
        add_scaled(T(1), b.part, problem.value_dim, b.out);
      });
      group.memory.store(problem.out, row, problem.value_dim, b.out);
    }
  }
};

template <class T>
struct BackwardMatrices {
  std::int64_t widest;
  MatrixBuffers<T> forward;
  T* scaled;   // (Sq, Sk), with softcap or a score function only
  T* dprobs;   // (Sq, Sk)
  T* dscores;  // (Sq, Sk)
  T* dkeys;    // (Sk, D), sums over the group
  T* dvalues;  // (Sk, Dv)

  static BackwardMatrices carve(const Problem& problem, Arena& arena) {
    const Checked k_rows = {problem.max_k};
    const Checked matrix = Checked{problem.max_q} * k_rows;
    BackwardMatrices buffers;
    buffers.widest = problem.max_k;
    buffers.forward = MatrixBuffers<T>::carve(problem, arena);
    const bool keeps_scaled = problem.softcap > 0 || problem.has_score_function();
    buffers.scaled = keeps_scaled ? arena.take<T>(matrix) : nullptr;
    buffers.dprobs = arena.take<T>(matrix);
    buffers.dscores = arena.take<T>(matrix);
    buffers.dkeys = arena.take<T>(k_rows * Checked{problem.head_dim});
    buffers.dvalues = arena.take<T>(k_rows * Checked{problem.value_dim});
    return buffers;
  }
};

struct ThreePassBackward {
  static constexpr Algorithm kAlgorithm = Algorithm::kThreePass;
  template <class T>
  using Buffers = BackwardMatrices<T>;

  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t) {
    const Problem& problem = group.problem;
    set_zero(b.dkeys, group.k_len() * problem.head_dim);
    set_zero(b.dvalues, group.k_len() * problem.value_dim);
    for (std::int64_t g = 0; g < group.size(); ++g) {
      compute_scores(group, g, b.forward, b.scaled);
      recompute_probs(group, g, b.forward);
      add_dvalues(group, g, b);
      compute_dprobs(group, g, b);
      compute_dscores(group, g, b);
      compute_dqueries(group, g, b);
      add_dkeys(group, g, b);
    }
    const Rows keys = group.key_rows(0, group.k_len());
    group.store_gradient(problem.dk, keys, problem.head_dim, b.dkeys);
    group.store_gradient(problem.dv, keys, problem.value_dim, b.dvalues);
  }

 private:
  // P <- exp(S - LSE)
  template <class T, class Counter>
  static void recompute_probs(const Group<T, Counter>& group, std::int64_t g,
                              const MatrixBuffers<T>& b) {
    const std::int64_t size = problem::dtype_size(group.problem.dtype);
    const std::int64_t k_len = group.k_len();
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      const T lse = group.load_lse(g, i);
      group.memory.load_array(b.scores + i * k_len, k_len, size, b.row);
      for (std::int64_t j = 0; j < k_len; ++j) {
        b.row[j] = b.row[j] == kMaskedScore<T> ? kMaskedProb<T> : math::probability(b.row[j], lse);
      }
      group.memory.store_array(b.row, k_len, size, b.probs + i * k_len);
    }
  }

  // dV += P^T dO
  template <class T, class Counter>
  static void add_dvalues(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    T* probs = b.forward.row;
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load_array(b.forward.probs + i * k_len, k_len,
                              problem::dtype_size(problem.dtype), probs);
      group.memory.load(problem.dout, group.query_rows(g, i, 1), problem.value_dim, b.forward.dout);
      for (std::int64_t j = 0; j < k_len; ++j) {
        if (probs[j] == kMaskedProb<T>) continue;
        const T factor = probs[j] * head.dropout_factor(i, j);
        add_scaled(factor, b.forward.dout, problem.value_dim, b.dvalues + j * problem.value_dim);
      }
    }
  }

  // dP <- dO V^T, times the dropout factor. The values of masked pairs are undefined;
  // compute_dscores discards them by selection.
  template <class T, class Counter>
  static void compute_dprobs(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    group.load_keys(problem.v, 0, k_len, problem.value_dim, b.forward.values);
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load(problem.dout, group.query_rows(g, i, 1), problem.value_dim, b.forward.dout);
      for (std::int64_t j = 0; j < k_len; ++j) {
        const T product =
            dot(b.forward.dout, b.forward.values + j * problem.value_dim, problem.value_dim);
        b.forward.row[j] = product * head.dropout_factor(i, j);
      }
      group.memory.store_array(b.forward.row, k_len, problem::dtype_size(problem.dtype),
                               b.dprobs + i * k_len);
    }
  }

  // dS <- P * (dP - delta), delta = rowsum(O * dO) - dLSE; then backwards through the
  // score function and the softcap.
  template <class T, class Counter>
  static void compute_dscores(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t size = problem::dtype_size(problem.dtype);
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    T* const probs = b.forward.row;
    T* const dscores = b.forward.other_row;
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load(problem.out, group.query_rows(g, i, 1), problem.value_dim, b.forward.out);
      group.memory.load(problem.dout, group.query_rows(g, i, 1), problem.value_dim, b.forward.dout);
      const T delta = group.delta(g, i, b.forward.out, b.forward.dout);
      group.memory.load_array(b.forward.probs + i * k_len, k_len, size, probs);
      group.memory.load_array(b.dprobs + i * k_len, k_len, size, dscores);
      for (std::int64_t j = 0; j < k_len; ++j) {
        const T gradient = math::score_gradient(probs[j], dscores[j], delta);
        dscores[j] = probs[j] == kMaskedProb<T> ? T(0) : gradient;
      }
      if (b.scaled != nullptr) {
        T* const scaled = b.forward.row;
        group.memory.load_array(b.scaled + i * k_len, k_len, size, scaled);
        for (std::int64_t j = 0; j < k_len; ++j)
          dscores[j] = head.product_gradient(i, j, scaled[j], dscores[j]);
      }
      group.memory.store_array(dscores, k_len, size, b.dscores + i * k_len);
    }
  }

  // dQ <- scale * dS K. A gradient of 0 is skipped, since its key may be masked.
  template <class T, class Counter>
  static void compute_dqueries(const Group<T, Counter>& group, std::int64_t g,
                               const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    if (!problem.dq.present()) return;
    group.load_keys(problem.k, 0, k_len, problem.head_dim, b.forward.keys);
    T* const dquery = b.forward.query;
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load_array(b.dscores + i * k_len, k_len, problem::dtype_size(problem.dtype),
                              b.forward.row);
      set_zero(dquery, problem.head_dim);
      for (std::int64_t j = 0; j < k_len; ++j) {
        const T dscore = b.forward.row[j];
        if (dscore != T(0))
          add_scaled(dscore, b.forward.keys + j * problem.head_dim, problem.head_dim, dquery);
      }
      scale_row(head.scale(), problem.head_dim, dquery);
      group.store_gradient(problem.dq, group.query_rows(g, i, 1), problem.head_dim, dquery);
    }
  }

  // dK += scale * dS^T Q
  template <class T, class Counter>
  static void add_dkeys(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t k_len = group.k_len();
    const auto head = group.head(g);
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      group.memory.load_array(b.dscores + i * k_len, k_len, problem::dtype_size(problem.dtype),
                              b.forward.row);
      group.memory.load(problem.q, group.query_rows(g, i, 1), problem.head_dim, b.forward.query);
      for (std::int64_t j = 0; j < k_len; ++j) {
        const T dscore = b.forward.row[j];
        if (dscore == T(0)) continue;
        add_scaled(head.scale() * dscore, b.forward.query, problem.head_dim,
                   b.dkeys + j * problem.head_dim);
      }
    }
  }
};

}  // namespace

constinit const problem::Kernel kThreePassForward = make_kernel<ThreePassForward>(
    "three_pass", "standard attention: all of S and P stored; the oracle in fp64");
constinit const problem::Kernel kThreePassBackward = make_kernel<ThreePassBackward>(
    "three_pass", "standard attention: all of S, P, dP and dS stored");

}  // namespace tilewise::reference
