#include "verify/plain.h"

#include <memory>
#include <stdexcept>

#include "problem/tensors.h"
#include "problem/validate.h"
#include "verify/plain_head.h"

namespace tilewise::verify {
namespace {

// Reads a problem and its sequences; throws the library's message.
struct Parsed {
  Problem problem;
  std::vector<Sequence> sequences;

  Parsed(problem::Operation operation, const tilewise_problem& request) {
    if (problem::make_problem(operation, request, &problem) != TILEWISE_OK) {
      throw std::runtime_error(problem::message());
    }
    sequences.resize(static_cast<std::size_t>(problem.batch));
    problem::fill_sequences(problem, sequences.data());
  }
};

template <class T>
void store_rows(const View& view, std::int64_t batch, std::int64_t head, std::int64_t first,
                const std::vector<T>& rows, std::int64_t width) {
  if (!view.present()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / width;
    const std::int64_t column = static_cast<std::int64_t>(i) % width;
    store(view, view.offset(batch, head, first + row, column), static_cast<double>(rows[i]));
  }
}

template <class T, bool kRounds>
void run_forward(const Parsed& parsed, SumOrder order,
                 problem::Fp8Probs fp8_probs = problem::Fp8Probs::kFp32) {
  const Problem& problem = parsed.problem;
  problem::fill_unowned_rows(problem, parsed.sequences.data());
  std::vector<T> out(static_cast<std::size_t>(problem.value_dim));
  for (const Sequence& sequence : parsed.sequences) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      PlainHead<T, kRounds> head(problem, sequence, h, order, fp8_probs);
      for (std::int64_t i = 0; i < sequence.q_len; ++i) {
        head.forward(i, out.data());
        const std::int64_t row = sequence.q_start + i;
        store_rows(problem.out, sequence.batch, h, row, out, problem.value_dim);
        if (!problem.lse.present()) continue;
        store(problem.lse, problem.lse.offset(sequence.batch, h, row),
              static_cast<double>(head.lse()));
      }
    }
  }
}

// dBias, dSink and the gradients of slopes sum over what they were broadcast to; the sums are kept
// in the arithmetic type.
template <class T>
struct SharedGradients {
  explicit SharedGradients(const Problem& problem) : shape(problem.bias_shape) {
    std::int64_t count = problem.dbias.present() ? 1 : 0;
    for (int d = 0; d < 4; ++d) count *= shape[d];
    dbias.assign(static_cast<std::size_t>(count), T(0));
    dsink.assign(static_cast<std::size_t>(problem.heads), T(0));
    if (problem.dalibi_slopes.present()) {
      const std::int64_t slopes = (problem.slopes_per_batch ? problem.batch : 1) * problem.heads;
      dslopes.assign(static_cast<std::size_t>(slopes), T(0));
    }
  }
  std::size_t bias_element(const std::int64_t (&index)[4]) const {
    std::int64_t element = 0;
    for (int d = 0; d < 4; ++d) element = element * shape[d] + (shape[d] == 1 ? 0 : index[d]);
    return static_cast<std::size_t>(element);
  }

  const std::int64_t* shape;
  std::vector<T> dbias;
  std::vector<T> dsink;
  std::vector<T> dslopes;
};

template <class T, bool kRounds>
void add_shared(const Problem& problem, const Sequence& sequence, std::int64_t h, std::int64_t row,
                const PlainHead<T, kRounds>& head, SharedGradients<T>& shared) {
  if (!shared.dbias.empty()) {
    for (std::int64_t j = 0; j < sequence.k_len; ++j) {
      shared.dbias[shared.bias_element({sequence.batch, h, row, j})] += head.dbias(j);
    }
  }
  if (!shared.dslopes.empty()) {
    const std::int64_t own = problem.slopes_per_batch ? sequence.batch : 0;
    T& sum = shared.dslopes[static_cast<std::size_t>(own * problem.heads + h)];
    for (std::int64_t j = 0; j < sequence.k_len; ++j)
      sum -= head.dbias(j) * static_cast<T>(std::abs(row + sequence.diagonal - j));
  }
  if (!problem.sink.present() || head.lse() == -std::numeric_limits<T>::infinity()) return;
  shared.dsink[static_cast<std::size_t>(h)] -= std::exp(head.sink() - head.lse()) * head.delta();
}

template <class T, bool kRounds>
void backward_group(const Problem& problem, const Sequence& sequence, std::int64_t kv_head,
                    SumOrder order, SharedGradients<T>& shared) {
  std::vector<T> out(static_cast<std::size_t>(problem.value_dim));
  std::vector<T> dkeys(static_cast<std::size_t>(sequence.k_len * problem.head_dim), T(0));
  std::vector<T> dvalues(static_cast<std::size_t>(sequence.k_len * problem.value_dim), T(0));
  for (std::int64_t h = kv_head * problem.group; h < (kv_head + 1) * problem.group; ++h) {
    PlainHead<T, kRounds> head(problem, sequence, h, order);
    for (std::int64_t n = 0; n < sequence.q_len; ++n) {
      const std::int64_t i = summand(order, n, sequence.q_len);
      std::vector<T> dquery(static_cast<std::size_t>(problem.head_dim), T(0));
      head.forward(i, out.data());
      head.recompute_probs(i);
      head.backward(i, dquery.data(), dkeys.data(), dvalues.data());
      store_rows(problem.dq, sequence.batch, h, sequence.q_start + i, dquery, problem.head_dim);
      add_shared(problem, sequence, h, i, head, shared);
    }
  }
  store_rows(problem.dk, sequence.batch, kv_head, sequence.k_start, dkeys, problem.head_dim);
  store_rows(problem.dv, sequence.batch, kv_head, sequence.k_start, dvalues, problem.value_dim);
}

template <class T, bool kRounds>
void run_backward(const Parsed& parsed, SumOrder order) {
  const Problem& problem = parsed.problem;
  problem::fill_unowned_rows(problem, parsed.sequences.data());
  SharedGradients<T> shared(problem);
  for (const Sequence& sequence : parsed.sequences) {
    for (std::int64_t h = 0; h < problem.kv_heads; ++h) {
      backward_group<T, kRounds>(problem, sequence, h, order, shared);
    }
  }
  for (std::size_t i = 0; i < shared.dbias.size(); ++i) {  // the results are contiguous
    store(problem.dbias, static_cast<std::int64_t>(i), static_cast<double>(shared.dbias[i]));
  }
  for (std::size_t i = 0; i < shared.dslopes.size(); ++i)
    store(problem.dalibi_slopes, static_cast<std::int64_t>(i),
          static_cast<double>(shared.dslopes[i]));
  if (!problem.dsink.present()) return;
  for (std::size_t h = 0; h < shared.dsink.size(); ++h) {
    store(problem.dsink, problem.dsink.offset(0, static_cast<std::int64_t>(h), 0),
          static_cast<double>(shared.dsink[h]));
  }
}

}  // namespace

Plain::Plain(const tilewise_problem& request, SumOrder order, problem::Fp8Probs fp8_probs)
    : order_(order),
      fp8_probs_(fp8_probs),
      values_(request, TILEWISE_FP32),
      results_(values_.request()) {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    const tilewise_tensor& original = request.*tensor.member;
    const bool gradient = tensor.backward == problem::Role::kOutput;
    if (!gradient || !problem::present(original)) continue;
    results_.*tensor.member = owner_.make(original.dtype, original.rank, original.shape);
  }
}

void Plain::run(problem::Operation operation) {
  if (operation == problem::Operation::kForward) {  // backward reads out and lse of the request
    for (const auto member : {&tilewise_problem::out, &tilewise_problem::lse}) {
      const tilewise_tensor original = results_.*member;
      if (!problem::present(original)) continue;
      results_.*member = owner_.make(original.dtype, original.rank, original.shape);
    }
  }
  const Parsed parsed(operation, results_);
  const bool forward = operation == problem::Operation::kForward;
  const bool rounds = order_ < kSumOrders - kUnroundedOrders;
  if (parsed.problem.dtype == TILEWISE_FP64) {
    forward ? run_forward<double, true>(parsed, order_)
            : run_backward<double, true>(parsed, order_);
  } else if (rounds) {
    forward ? run_forward<float, true>(parsed, order_, fp8_probs_)
            : run_backward<float, true>(parsed, order_);
  } else {
    forward ? run_forward<float, false>(parsed, order_, fp8_probs_)
            : run_backward<float, false>(parsed, order_);
  }
}

void run_extended(problem::Operation operation, const tilewise_problem& request) {
  const Parsed parsed(operation, request);
  operation == problem::Operation::kForward ? run_forward<long double, false>(parsed, SumOrder{0})
                                            : run_backward<long double, false>(parsed, SumOrder{0});
}

std::vector<ExactRow> exact_rows(const tilewise_problem& request,
                                 const std::vector<RowNumber>& rows) {
  const Dequantised values(request, TILEWISE_FP32);
  const Parsed parsed(problem::Operation::kForward, values.request());
  std::vector<ExactRow> results;
  std::unique_ptr<PlainHead<double, false>> head;
  const RowNumber* previous = nullptr;
  for (const RowNumber& number : rows) {
    const bool same =
        previous != nullptr && previous->batch == number.batch && previous->head == number.head;
    if (!same) {
      const Sequence& sequence = parsed.sequences[static_cast<std::size_t>(number.batch)];
      head = std::make_unique<PlainHead<double, false>>(parsed.problem, sequence, number.head,
                                                        SumOrder{0});
    }
    previous = &number;
    ExactRow row;
    row.out.resize(static_cast<std::size_t>(parsed.problem.value_dim));
    head->forward(number.row, row.out.data());
    row.lse = head->lse();
    results.push_back(std::move(row));
  }
  return results;
}

}  // namespace tilewise::verify
