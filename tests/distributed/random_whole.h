// Random whole problems: lengths, sequences, masks.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "distributed/whole.h"
#include "problem/status.h"
#include "verify/random.h"

namespace tilewise::tests {

// A whole problem of random lengths, options and sequences, and what it is made of.
struct RandomWhole {
  tilewise_problem request = {};
  distributed::Lengths lengths = {0, 0};
  std::vector<std::int64_t> cu_q, cu_k, used_q, used_k;
  distributed::Whole whole;

  explicit RandomWhole(verify::Random& random) {
    request.struct_size = sizeof(request);
    request.softmax_scale = TILEWISE_DEFAULT_SCALE;
    request.max_seqlen_q = request.max_seqlen_k = -1;
    request.causal = random.chance(0.4);
    request.alignment = random.chance(0.3);
    request.window_left = random.chance(0.5) ? -1 : random.between(0, 12);
    request.window_right = random.chance(0.5) ? -1 : random.between(0, 12);
    const std::int64_t batch = random.between(1, 4);
    const bool q_packed = random.chance(0.5);
    const bool k_packed = q_packed;
    lengths.q = q_packed ? fill(cu_q, batch, random) : random.between(0, 40);
    lengths.k = k_packed ? fill(cu_k, batch, random) : random.between(0, 40);
    // The number of rows of the rank does not matter.
    request.q = request.out = tensor(q_packed, batch, 3);
    request.k = request.v = tensor(k_packed, batch, 5);
    if (q_packed) request.cu_seqlens_q = list(cu_q);
    if (k_packed) request.cu_seqlens_k = list(cu_k);
    if (random.chance(0.4)) request.seqused_q = use(used_q, cu_q, lengths.q, batch, random);
    if (random.chance(0.4)) request.seqused_k = use(used_k, cu_k, lengths.k, batch, random);
    const auto status =
        distributed::make_whole(problem::Operation::kForward, request, lengths, &whole);
    EXPECT_EQ(status, TILEWISE_OK) << problem::message();
  }

  // The definition: same sequence, both rows in use, inside causal mask and window.
  bool visible(std::int64_t b, std::int64_t q_token, std::int64_t k_token) const {
    const std::size_t s = static_cast<std::size_t>(b);
    const std::int64_t q_start = cu_q.empty() ? 0 : cu_q[s];
    const std::int64_t k_start = cu_k.empty() ? 0 : cu_k[s];
    std::int64_t q_len = cu_q.empty() ? lengths.q : cu_q[s + 1] - q_start;
    std::int64_t k_len = cu_k.empty() ? lengths.k : cu_k[s + 1] - k_start;
    if (!used_q.empty()) q_len = used_q[s];
    if (!used_k.empty()) k_len = used_k[s];
    const std::int64_t i = q_token - q_start;
    const std::int64_t j = k_token - k_start;
    if (i < 0 || i >= q_len || j < 0 || j >= k_len) return false;
    const std::int64_t centre = i + (request.alignment == TILEWISE_TOP_LEFT ? 0 : k_len - q_len);
    if (request.causal && j > centre) return false;
    if (request.window_left >= 0 && j < centre - request.window_left) return false;
    return request.window_right < 0 || j <= centre + request.window_right;
  }

  std::int64_t batch() const { return static_cast<std::int64_t>(whole.sequences.size()); }

 private:
  static std::int64_t fill(std::vector<std::int64_t>& cu, std::int64_t batch,
                           verify::Random& random) {
    cu.push_back(random.between(0, 2));
    for (std::int64_t b = 0; b < batch; ++b) cu.push_back(cu.back() + random.between(0, 12));
    return cu.back() + random.between(0, 2);
  }
  static tilewise_tensor tensor(bool packed, std::int64_t batch, std::int64_t rows) {
    const std::int64_t dense[] = {batch, rows, 2, 4};
    return tilewise_contiguous(nullptr, TILEWISE_FP32, packed ? 3 : 4, packed ? dense + 1 : dense);
  }
  static tilewise_tensor list(std::vector<std::int64_t>& numbers) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(numbers.size())};
    return tilewise_contiguous(numbers.data(), TILEWISE_INT64, 1, shape);
  }
  static tilewise_tensor use(std::vector<std::int64_t>& used, const std::vector<std::int64_t>& cu,
                             std::int64_t length, std::int64_t batch, verify::Random& random) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::size_t s = static_cast<std::size_t>(b);
      used.push_back(random.between(0, cu.empty() ? length : cu[s + 1] - cu[s]));
    }
    return list(used);
  }
};

}  // namespace tilewise::tests
