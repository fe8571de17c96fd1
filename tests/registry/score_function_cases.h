// Score functions with a gradient of their own, and cases for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tilewise/tilewise.hpp>
#include <tuple>
#include <vector>

#include "registry/support.h"

namespace tilewise::tests {

// A learned term of the head and the distance i + d - j, at most kReach to either side. Calls of
// one head and one first key come in order from one thread, so that these have sums of their own,
// which are added up in a fixed order.
class RelativeTable {
 public:
  static constexpr std::int64_t kReach = 40;
  static constexpr std::int64_t kPlaces = 2 * kReach + 1;

  explicit RelativeTable(std::int64_t heads) : values_(static_cast<std::size_t>(heads * kPlaces)) {
    Random random(run_seed());
    for (float& value : values_) value = static_cast<float>(random.between(-100, 100)) / 64;
  }
  static std::size_t place(std::int64_t head, std::int64_t distance) {
    return static_cast<std::size_t>(head * kPlaces + std::clamp(distance, -kReach, kReach) +
                                    kReach);
  }

  double at(std::int64_t head, std::int64_t distance) const {
    return values_[place(head, distance)];
  }
  tilewise_score_function function() { return {forward, backward, this, 0}; }

  // Returns the gradient of the table since the last call, (heads, kPlaces).
  std::vector<double> take_gradient() {
    std::vector<double> total(values_.size());
    for (const auto& [tile, sums] : sums_) {
      for (std::size_t i = 0; i < sums.size(); ++i) total[i] += sums[i];
    }
    sums_.clear();
    return total;
  }
  // Pairs whose gradient is 0 and whose score is not finite.
  std::int64_t dirty_pairs() const { return dirty_; }

 private:
  template <class Function>
  static void with_number(const ScoreTile& tile, const Function& f) {
    tile.dtype == TILEWISE_FP64 ? f(double{}) : f(float{});
  }
  static void forward(void* self, const ScoreTile* tile, void* scores) {
    const RelativeTable& table = *static_cast<const RelativeTable*>(self);
    with_number(*tile, [&](auto number) {
      using T = decltype(number);
      for_each_pair(*tile, [&](std::int64_t query, std::int64_t key, std::int64_t at) {
        static_cast<T*>(scores)[at] +=
            static_cast<T>(table.at(tile->head, query + tile->diagonal - key));
      });
    });
  }
  // The derivative is 1, so that the gradients stay. Those of masked pairs are spoilt, which has no
  // effect.
  static void backward(void* self, const ScoreTile* tile, const void* scores, void* gradients) {
    RelativeTable& table = *static_cast<RelativeTable*>(self);
    std::vector<double>& sums = table.sums_of(*tile);
    std::int64_t dirty = 0;
    with_number(*tile, [&](auto number) {
      using T = decltype(number);
      T* const gradient = static_cast<T*>(gradients);
      for_each_pair(*tile, [&](std::int64_t query, std::int64_t key, std::int64_t at) {
        sums[place(tile->head, query + tile->diagonal - key)] += static_cast<double>(gradient[at]);
        if (gradient[at] != T(0)) return;
        gradient[at] = std::numeric_limits<T>::quiet_NaN();
        dirty += std::isfinite(static_cast<const T*>(scores)[at]) ? 0 : 1;
      });
    });
    const std::lock_guard lock(table.mutex_);
    table.dirty_ += dirty;
  }
  std::vector<double>& sums_of(const ScoreTile& tile) {
    const std::lock_guard lock(mutex_);
    std::vector<double>& sums = sums_[{tile.batch, tile.head, tile.first_key}];
    sums.resize(values_.size());
    return sums;
  }

  std::vector<float> values_;
  std::mutex mutex_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<double>> sums_;
  std::int64_t dirty_ = 0;
};

// Cases of every mask and layout, in which a bias of fp32 has every dimension.
inline std::vector<Case> biased_cases(Operation operation, std::int32_t dtype) {
  std::vector<Case> cases;
  Case causal = make_case(operation, dtype, {2, 50, 137, 4, 2, 24});
  causal.causal = true;
  causal.used = {137, 80};
  cases.push_back(causal);
  Case window = make_case(operation, dtype, {1, 70, 65, 2, 1, 40});
  window.window_left = 17;
  window.window_right = 5;
  window.alignment = TILEWISE_TOP_LEFT;
  cases.push_back(window);
  Case sliced = make_case(operation, dtype, {1, 80, 96, 4, 2, 16});
  sliced.slices = {{0, 40, 0, 96, 1, -1}, {10, 60, 30, 90, 3, 0}, {60, 80, 0, 50, 2, -1}};
  sliced.slice_heads = true;
  cases.push_back(sliced);
  Case packed = make_case(operation, dtype, {4, 0, 0, 4, 2, 32});
  packed.q_packed = packed.k_packed = packed.causal = true;
  packed.q_lengths = {17, 0, 64, 33};
  packed.k_lengths = {17, 5, 65, 20};
  packed.unowned = 3;
  cases.push_back(packed);
  if (operation == Operation::kForward) {
    Case decoded = make_case(operation, dtype, {2, 3, 1090, 4, 2, 40});
    decoded.causal = true;
    cases.push_back(decoded);
  }
  for (Case& c : cases) {
    c.bias.present = c.bias_fp32 = true;
    c.lse = true;
  }
  return cases;
}

}  // namespace tilewise::tests
