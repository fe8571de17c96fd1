// A learned relative-position term as a score function: its table is trained to give the outputs of
// another table. Nothing of size length x length is stored.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <tilewise/tilewise.hpp>
#include <tuple>

// snippet: table
// score += table[head][i + d - j], for distances up to kReach to either side.
class RelativePosition {
 public:
  static constexpr std::int64_t kReach = 16, kPlaces = 2 * kReach + 1;

  explicit RelativePosition(std::int64_t heads)
      : table(static_cast<std::size_t>(heads * kPlaces)) {}

  // forward: called by several threads, which read the table.
  template <class T>
  void add(const tilewise::ScoreTile& tile, T* scores) const {
    tilewise::for_each_pair(tile, [&](std::int64_t i, std::int64_t j, std::int64_t at) {
      scores[at] += static_cast<T>(table[place(tile.head, i + tile.diagonal - j)]);
    });
  }

  // backward: the derivative is 1, so the gradients stay, and the table's own are added up. One
  // thread makes the calls of one sequence, head and first key, in order. With a sum for each, the
  // total has the same bits for any number of threads.
  template <class T>
  void add_gradient(const tilewise::ScoreTile& tile, const T* gradients) const {
    std::vector<double>& sum = sum_of(tile);
    tilewise::for_each_pair(tile, [&](std::int64_t i, std::int64_t j, std::int64_t at) {
      sum[place(tile.head, i + tile.diagonal - j)] += static_cast<double>(gradients[at]);
    });
  }

  // Returns the gradient of the table, and starts the next one.
  std::vector<double> take_gradient() {
    std::vector<double> total(table.size());
    for (const auto& [tile, sum] : sums_) {
      for (std::size_t n = 0; n < sum.size(); ++n) total[n] += sum[n];
    }
    sums_.clear();
    return total;
  }

  std::vector<float> table;  // (heads, kPlaces)

 private:
  static std::size_t place(std::int64_t head, std::int64_t distance) {
    return static_cast<std::size_t>(head * kPlaces + kReach +
                                    std::clamp(distance, -kReach, kReach));
  }
  std::vector<double>& sum_of(const tilewise::ScoreTile& tile) const {
    const std::lock_guard lock(mutex_);
    std::vector<double>& sum = sums_[{tile.batch, tile.head, tile.first_key}];
    sum.resize(table.size());
    return sum;
  }

  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<double>> sums_;
};
// end of snippet

namespace {

constexpr std::int64_t kLength = 150, kHeads = 4, kKvHeads = 2, kDim = 16;

std::vector<float> waves(std::int64_t count, float frequency) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = std::sin(frequency * static_cast<float>(i));
  return numbers;
}

struct Attention {
  std::vector<float> q = waves(kLength * kHeads * kDim, 0.71f);
  std::vector<float> k = waves(kLength * kKvHeads * kDim, 1.13f);
  std::vector<float> v = waves(kLength * kKvHeads * kDim, 2.37f);
  std::vector<float> out = q, dout = q, dq = q;
  std::vector<float> lse = std::vector<float>(kHeads * kLength);
  tilewise::Problem problem;

  Attention() {
    const auto rows = [](std::vector<float>& data, std::int64_t heads) {
      return tilewise::tensor(std::span(data), {1, kLength, heads, kDim});
    };
    problem.causal = 1;
    problem.q = rows(q, kHeads);
    problem.k = rows(k, kKvHeads);
    problem.v = rows(v, kKvHeads);
    problem.out = rows(out, kHeads);
    problem.dout = rows(dout, kHeads);
    problem.lse = tilewise::tensor(std::span(lse), {1, kHeads, kLength});
  }
};

// Returns half the sum of squares of out - target, and sets dout to its gradient.
double set_loss(const std::vector<float>& target, Attention& attention) {
  double loss = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    attention.dout[i] = attention.out[i] - target[i];
    loss += 0.5 * static_cast<double>(attention.dout[i] * attention.dout[i]);
  }
  return loss;
}

}  // namespace

int main() try {
  Attention attention;
  RelativePosition position(kHeads);
  // snippet: use
  const tilewise::ScoreFunction function(
      [&](const tilewise::ScoreTile& tile, auto* scores) { position.add(tile, scores); },
      [&](const tilewise::ScoreTile& tile, const auto*, auto* gradients) {
        position.add_gradient(tile, gradients);
      });
  attention.problem.score_function = function.get();  // `function` must outlive the calls
  // end of snippet
  for (std::size_t i = 0; i < position.table.size(); ++i)
    position.table[i] = std::sin(0.9f * static_cast<float>(i));
  tilewise::forward(attention.problem);
  const std::vector<float> target = attention.out;

  std::fill(position.table.begin(), position.table.end(), 0.0f);
  double first = 0;
  double loss = 0;
  for (int step = 0; step <= 60; ++step) {
    tilewise::forward(attention.problem);
    loss = set_loss(target, attention);
    if (step == 0) first = loss;
    if (step % 20 == 0) std::printf("step %2d: loss %.5f\n", step, loss);
    tilewise::backward(attention.problem);
    const std::vector<double> gradient = position.take_gradient();
    for (std::size_t i = 0; i < gradient.size(); ++i)
      position.table[i] -= static_cast<float>(0.1 * gradient[i]);
  }
  return loss < 0.05 * first ? 0 : 1;
} catch (const tilewise::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
