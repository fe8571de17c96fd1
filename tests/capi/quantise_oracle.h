// The definition of a quantisation (docs/semantics.md), row by row and without SIMD, and random
// tasks for it.
#pragma once

#include <tilewise/tilewise_quantise.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "math/float8.h"
#include "math/philox.h"
#include "problem/problem.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::tests {

struct QuantiseCase {
  std::int64_t batch = 2, rows = 200, heads = 4, kv_heads = 2, width = 64;
  std::int32_t input = TILEWISE_BF16, output = TILEWISE_E4M3;
  int scales = 3;  // the rank of descale; 0: absent
  bool packed = false, heads_first = false, padded = false, incoherent = false, fixed = false;
  std::vector<std::int64_t> starts;  // cu_seqlens; empty: absent
  std::uint64_t seed = 7;

  std::int64_t sequences() const {
    if (!starts.empty()) return static_cast<std::int64_t>(starts.size()) - 1;
    return packed ? 1 : batch;
  }
  std::int64_t blocks() const { return scales == 3 ? (rows + 127) / 128 : 1; }
  std::int64_t scale_heads() const { return scales >= 2 ? kv_heads : 1; }
  std::int64_t scale_sequences() const { return scales >= 2 ? sequences() : 1; }
  std::string text() const {
    std::string all;
    for (const std::int64_t number :
         {batch, rows, heads, kv_heads, width, std::int64_t{input}, std::int64_t{output},
          std::int64_t{scales}, std::int64_t{packed}, std::int64_t{heads_first},
          std::int64_t{padded}, std::int64_t{incoherent}, std::int64_t{fixed},
          static_cast<std::int64_t>(starts.size()), static_cast<std::int64_t>(seed)})
      all += std::to_string(number) + " ";
    return all;
  }
};

// The memory of a case. Outputs are poisoned.
class QuantiseTask {
 public:
  explicit QuantiseTask(const QuantiseCase& c) : c_(c) {
    tilewise_quantisation_init(&request);
    request.layout = c.heads_first ? TILEWISE_BHSD : TILEWISE_BSHD;
    request.incoherent = c.incoherent;
    request.fixed_scales = c.fixed;
    request.seed = c.seed;
    request.input = tensor(c.input, input_);
    request.output = tensor(c.output, output_);
    const std::int64_t shape[] = {c.scales == 1 ? 1 : c.sequences(), c.kv_heads, c.blocks()};
    std::int64_t count = 1;
    for (int d = 0; d < c.scales; ++d) count *= shape[d];
    scales.assign(static_cast<std::size_t>(count), -7.0f);
    if (c.scales > 0)
      request.descale = tilewise_contiguous(scales.data(), TILEWISE_FP32, c.scales, shape);
    const std::int64_t entries = static_cast<std::int64_t>(c.starts.size());
    if (entries > 0)
      request.cu_seqlens = tilewise_contiguous(const_cast<std::int64_t*>(c.starts.data()),
                                               TILEWISE_INT64, 1, &entries);
    const std::int64_t one = 1;
    if (c.scales > 0) request.saturated = tilewise_contiguous(&saturated, TILEWISE_INT64, 1, &one);
  }

  std::int64_t offset(const tilewise_tensor& t, std::int64_t b, std::int64_t h, std::int64_t r,
                      std::int64_t column) const {
    if (c_.packed) return r * t.strides[0] + h * t.strides[1] + column;
    return b * t.strides[0] + r * t.strides[c_.heads_first ? 2 : 1] +
           h * t.strides[c_.heads_first ? 1 : 2] + column;
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t column, double x) {
    verify::write_element(request.input, offset(request.input, b, h, r, column), x);
  }
  float get(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t column) const {
    return static_cast<float>(
        verify::read_element(request.input, offset(request.input, b, h, r, column)));
  }
  const std::vector<std::uint8_t>& output_bytes() const { return output_; }
  std::vector<std::uint8_t>& output_bytes() { return output_; }
  std::vector<std::uint8_t>& input_bytes() { return input_; }

  tilewise_quantisation request;
  std::vector<float> scales;
  std::int64_t saturated = 0;

 private:
  tilewise_tensor tensor(std::int32_t dtype, std::vector<std::uint8_t>& bytes) const {
    const std::int64_t width = c_.width + (c_.padded ? 5 : 0);
    tilewise_tensor t = {};
    t.dtype = dtype;
    t.rank = c_.packed ? 3 : 4;
    const std::int64_t outer = c_.heads_first && !c_.packed ? c_.heads : c_.rows;
    const std::int64_t inner = c_.heads_first && !c_.packed ? c_.rows : c_.heads;
    const std::int64_t all[] = {c_.batch, outer, inner, c_.width};
    const std::int64_t strides[] = {outer * inner * width, inner * width, width, 1};
    std::copy_n(all + (4 - t.rank), t.rank, t.shape);
    std::copy_n(strides + (4 - t.rank), t.rank, t.strides);
    const std::int64_t count = (c_.packed ? 1 : c_.batch) * outer * inner * width;
    bytes.assign(static_cast<std::size_t>(count * problem::dtype_size(dtype)), 0xAA);
    t.data = bytes.data();
    return t;
  }

  QuantiseCase c_;
  std::vector<std::uint8_t> input_, output_;
};

// A row times the matrix of the seed, in the arithmetic T, by the definition.
template <class T>
std::vector<T> rotated(std::vector<T> row, std::uint64_t seed) {
  const std::int64_t width = static_cast<std::int64_t>(row.size());
  std::int64_t begin = 0;
  while (begin < width) {
    std::int64_t n = 1;
    while (2 * n <= width - begin) n *= 2;
    T* const x = row.data() + begin;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t column = begin + i;
      const math::Philox4 words =
          math::philox_4x32_10({{static_cast<std::uint32_t>(column / 128), 0, 0, 0}}, seed);
      const bool negative = (words.word[column / 32 % 4] >> (column % 32) & 1u) != 0;
      const T factor = static_cast<T>(1 / std::sqrt(static_cast<double>(n)));
      x[i] *= negative ? -factor : factor;
    }
    for (std::int64_t h = 1; h < n; h *= 2) {
      for (std::int64_t i = 0; i < n; ++i) {
        if (i / h % 2 != 0) continue;
        const T a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
    begin += n;
  }
  for (T& x : row) x = std::isfinite(x) ? x : static_cast<T>(NAN);
  return row;
}

// Writes into `task` what tilewise_quantise() must write.
class QuantiseOracle {
 public:
  QuantiseOracle(const QuantiseCase& c, QuantiseTask& task) : c_(c), task_(task) {}

  void run() {
    if (c_.scales > 0 && !c_.fixed) choose_scales();
    for_each_row([&](std::int64_t b, std::int64_t sequence, std::int64_t h, std::int64_t r,
                     std::int64_t place) {
      const std::vector<float> row = row_of(b, h, r);
      const float inverse =
          sequence < 0 || c_.scales == 0 ? 0 : 1 / task_.scales[scale_index(sequence, h, place)];
      for (std::int64_t d = 0; d < c_.width; ++d) {
        const float x = row[static_cast<std::size_t>(d)];
        store(task_.offset(task_.request.output, b, h, r, d), x, x * inverse, sequence < 0);
      }
    });
  }

 private:
  // Calls visit(batch, sequence or -1, head, row, row within the sequence).
  template <class Visit>
  void for_each_row(Visit visit) const {
    for (std::int64_t b = 0; b < (c_.packed ? 1 : c_.batch); ++b) {
      for (std::int64_t r = 0; r < c_.rows; ++r) {
        std::int64_t sequence = c_.starts.empty() ? b : -1;
        std::int64_t place = r;
        for (std::size_t s = 0; s + 1 < c_.starts.size(); ++s) {
          if (r < c_.starts[s] || r >= c_.starts[s + 1]) continue;
          sequence = static_cast<std::int64_t>(s);
          place = r - c_.starts[s];
        }
        for (std::int64_t h = 0; h < c_.heads; ++h) visit(b, sequence, h, r, place);
      }
    }
  }
  std::vector<float> row_of(std::int64_t b, std::int64_t h, std::int64_t r) const {
    std::vector<float> row;
    for (std::int64_t d = 0; d < c_.width; ++d) row.push_back(task_.get(b, h, r, d));
    return c_.incoherent ? rotated(row, c_.seed) : row;
  }
  std::size_t scale_index(std::int64_t sequence, std::int64_t h, std::int64_t place) const {
    if (c_.scales == 1) return 0;
    const std::int64_t head = h / (c_.heads / c_.kv_heads);
    return static_cast<std::size_t>((sequence * c_.kv_heads + head) * c_.blocks() +
                                    (c_.scales == 3 ? place / 128 : 0));
  }
  void choose_scales() {
    const float largest = c_.output == TILEWISE_E4M3 ? 448.0f : 57344.0f;
    std::vector<float> most(task_.scales.size(), 0.0f);
    for_each_row([&](std::int64_t b, std::int64_t sequence, std::int64_t h, std::int64_t r,
                     std::int64_t place) {
      if (sequence < 0) return;
      for (const float x : row_of(b, h, r)) {
        float& known = most[scale_index(sequence, h, place)];
        if (std::isfinite(x)) known = std::max(known, std::fabs(x));
      }
    });
    for (std::size_t i = 0; i < most.size(); ++i)
      task_.scales[i] = most[i] == 0 ? 1 : std::max(most[i] / largest, 0x1p-126f);
  }
  void store(std::int64_t at, float x, float scaled, bool unowned) {
    std::uint8_t* const bytes = task_.output_bytes().data();
    if (c_.output != TILEWISE_E4M3 && c_.output != TILEWISE_E5M2) {
      verify::write_element(task_.request.output, at, static_cast<double>(x));
    } else if (unowned) {
      bytes[at] = 0;
    } else if (std::isnan(scaled)) {
      bytes[at] = 0x7f;
    } else {
      bytes[at] = c_.output == TILEWISE_E4M3 ? math::to_float8<math::Float8E4M3>(scaled).bits
                                             : math::to_float8<math::Float8E5M2>(scaled).bits;
      const bool beyond =
          c_.output == TILEWISE_E4M3 ? std::fabs(scaled) > 464 : std::fabs(scaled) >= 61440;
      task_.saturated += beyond;
    }
  }

  const QuantiseCase& c_;
  QuantiseTask& task_;
};

}  // namespace tilewise::tests
