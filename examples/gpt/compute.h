// The threads that do the work: the library's thread pool, which attention and the model's own
// loops use through the same executor. Results do not depend on the number of threads, which
// decides which thread computes an item, and never what is computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace gpt {

class Compute {
 public:
  explicit Compute(std::int32_t threads = 0) : pool_(threads) {}

  const tilewise_executor* executor() const { return pool_.executor(); }
  std::int32_t threads() const { return pool_.executor()->max_concurrency; }

  // Calls body(item) for every item in 0..n-1, in any order, on any threads. It must not throw.
  template <class Body>
  void parallel_for(std::int64_t n, const Body& body) const {
    const auto call = [](void* context, std::int64_t item) {
      (*static_cast<const Body*>(context))(item);
    };
    executor()->parallel_for(executor()->self, n, call, const_cast<Body*>(&body));
  }

  // Calls body(first, last) for consecutive blocks of 0..n-1.
  template <class Body>
  void parallel_blocks(std::int64_t n, std::int64_t block, const Body& body) const {
    parallel_for((n + block - 1) / block,
                 [&](std::int64_t item) { body(item * block, std::min(n, (item + 1) * block)); });
  }

 private:
  tilewise::Pool pool_;
};

}  // namespace gpt
