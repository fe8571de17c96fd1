#include "reference/traffic.h"

#include <cmath>
#include <limits>

#include "math/integer.h"
#include "problem/kernel.h"
#include "reference/splits.h"

namespace tilewise::reference {
namespace {

using math::KeyRange;
using problem::Operation;

math::Band band_of(const AttentionShape& shape) {
  const std::int64_t diagonal = shape.top_left ? 0 : shape.k_len - shape.q_len;
  return math::window_band(shape.q_len, shape.k_len, diagonal, shape.window_left,
                           shape.window_right);
}

// Returns the number of (query, key) pairs of one head that the mask lets through.
double visible_pairs(const AttentionShape& shape) {
  if (shape.window_left < 0 && shape.window_right < 0) {
    return static_cast<double>(shape.q_len) * static_cast<double>(shape.k_len);
  }
  const math::Band band = band_of(shape);
  double pairs = 0;
  for (std::int64_t row = 0; row < shape.q_len; ++row) {
    const KeyRange seen = math::visible_keys(band, row);
    pairs += static_cast<double>(math::max(0, seen.end - seen.begin));
  }
  return pairs;
}

// The rows and keys that one head touches over all of its tiles that are not empty.
struct TileVisits {
  double rows = 0;  // sum of the query rows of those tiles: Tc * Sq without a mask
  double keys = 0;  // sum of their keys: Tr * Sk without a mask
};

TileVisits visits(const AttentionShape& shape, TileSizes tiles) {
  const math::Band band = band_of(shape);
  TileVisits total;
  for (std::int64_t row = 0; row < shape.q_len; row += tiles.q_rows) {
    const std::int64_t end = math::min(row + tiles.q_rows, shape.q_len);
    const KeyRange seen = math::tile_keys(band, row, end);
    if (seen.begin >= shape.k_len || seen.end <= 0) continue;
    const std::int64_t first = math::max(0, seen.begin) / tiles.k_rows;
    const std::int64_t last = math::ceil_div(math::min(seen.end, shape.k_len), tiles.k_rows);
    if (first >= last) continue;
    total.rows += static_cast<double>(end - row) * static_cast<double>(last - first);
    total.keys +=
        static_cast<double>(math::min(last * tiles.k_rows, shape.k_len) - first * tiles.k_rows);
  }
  return total;
}

// Adds up a prediction in rows of D or Dv elements; the numbers of heads are multiplied in at the
// end.
class Account {
 public:
  Account(const AttentionShape& shape, Prediction* prediction)
      : element_(static_cast<double>(shape.element_size)), prediction_(prediction) {
    head_dim = static_cast<double>(shape.head_dim);
    value_dim = static_cast<double>(shape.value_dim);
    q_rows = static_cast<double>(shape.q_len);
    k_rows = static_cast<double>(shape.k_len);
    per_head = static_cast<double>(shape.batch) * static_cast<double>(shape.heads);
    per_kv_head = static_cast<double>(shape.batch) * static_cast<double>(shape.kv_heads);
  }

  double head_dim, value_dim, q_rows, k_rows;
  double per_head, per_kv_head;  // how often work that is done once per head is done

  void tensor(const char* name, double read_elements, double written_elements) {
    prediction_->tensors[prediction_->tensor_count++] = {name, read_elements * element_,
                                                         written_elements * element_};
  }

 private:
  double element_;
  Prediction* prediction_;
};

void three_pass(Account a, bool backward) {
  const double matrix = a.per_head * a.q_rows * a.k_rows;
  const double queries = a.per_head * a.q_rows;
  const double keys = a.per_head * a.k_rows;
  a.tensor("q", (backward ? 2 : 1) * queries * a.head_dim, 0);
  a.tensor("k", (backward ? 2 : 1) * keys * a.head_dim, 0);
  a.tensor("v", keys * a.value_dim, 0);
  a.tensor("scores", matrix, matrix);
  a.tensor("probs", (backward ? 2 : 1) * matrix, matrix);
  if (!backward) return a.tensor("out", 0, queries * a.value_dim);
  a.tensor("out", queries * a.value_dim, 0);
  a.tensor("dout", 3 * queries * a.value_dim, 0);
  a.tensor("dprobs", matrix, matrix);
  a.tensor("dscores", 2 * matrix, matrix);
  a.tensor("dq", 0, queries * a.head_dim);
  a.tensor("dk", 0, a.per_kv_head * a.k_rows * a.head_dim);
  a.tensor("dv", 0, a.per_kv_head * a.k_rows * a.value_dim);
}

void online_softmax(Account a, bool backward, double visible) {
  const double pairs = a.per_head * visible;
  const double queries = a.per_head * a.q_rows;
  a.tensor("q", queries * a.head_dim, 0);
  a.tensor("k", (backward ? 1 : 2) * pairs * a.head_dim, 0);
  a.tensor("v", pairs * a.value_dim, 0);
  if (!backward) return a.tensor("out", 0, queries * a.value_dim);
  a.tensor("out", queries * a.value_dim, 0);
  a.tensor("dout", queries * a.value_dim, 0);
  a.tensor("dq", 0, queries * a.head_dim);
  a.tensor("dk", pairs * a.head_dim, pairs * a.head_dim);
  a.tensor("dv", pairs * a.value_dim, pairs * a.value_dim);
}

// The traffic of key tiles as the outer loop: K and V are loaded once, dK and dV are stored once.
void outer_keys(Account& a, bool backward) {
  const double keys = a.per_kv_head * a.k_rows;
  a.tensor("k", keys * a.head_dim, 0);
  a.tensor("v", keys * a.value_dim, 0);
  if (!backward) return;
  a.tensor("dk", 0, keys * a.head_dim);
  a.tensor("dv", 0, keys * a.value_dim);
}

void flash1(Account a, bool backward, const TileVisits& visited) {
  const double rows = a.per_head * visited.rows;
  outer_keys(a, backward);
  a.tensor("q", rows * a.head_dim, 0);
  if (!backward) return a.tensor("out", rows * a.value_dim, rows * a.value_dim);
  a.tensor("out", rows * a.value_dim, 0);
  a.tensor("dout", rows * a.value_dim, 0);
  a.tensor("dq", rows * a.head_dim, rows * a.head_dim);
}

void flash2_forward(Account a, const TileVisits& visited) {
  const double keys = a.per_head * visited.keys;
  a.tensor("q", a.per_head * a.q_rows * a.head_dim, 0);
  a.tensor("k", keys * a.head_dim, 0);
  a.tensor("v", keys * a.value_dim, 0);
  a.tensor("out", 0, a.per_head * a.q_rows * a.value_dim);
}

// The rows of K and of partial results that the tiles of packed rows and splits visit, for one kv
// head.
struct SplitVisits {
  double keys = 0;
  double partial_rows = 0;
};

SplitVisits split_visits(const AttentionShape& shape, TileSizes tiles) {
  const math::Band band = band_of(shape);
  const Splits splits = splits_of(shape.k_len);
  const std::int64_t group = shape.kv_heads > 0 ? shape.heads / shape.kv_heads : 1;
  SplitVisits total;
  for (std::int64_t row = 0; row < group * shape.q_len; row += tiles.q_rows) {
    const std::int64_t end = math::min(row + tiles.q_rows, group * shape.q_len);
    for (std::int64_t s = 0; s < splits.count; ++s) {
      const KeyRange of_split = splits.keys(s);
      bool visited = false;
      for (std::int64_t key = of_split.begin; key < of_split.end; key += tiles.k_rows) {
        const std::int64_t key_end = math::min(key + tiles.k_rows, of_split.end);
        if (math::classify(band, row / group, (end - 1) / group + 1, key, key_end) ==
            math::TileClass::kEmpty)
          continue;
        visited = true;
        total.keys += static_cast<double>(key_end - key);
      }
      if (visited && splits.count > 1) total.partial_rows += static_cast<double>(end - row);
    }
  }
  return total;
}

// Partial results have the arithmetic type: 8 bytes for fp64, else 4.
void flash_decoding(Account a, const AttentionShape& shape, const SplitVisits& visited) {
  const double keys = a.per_kv_head * visited.keys;
  const double sum_elements =
      shape.element_size == 8 ? 1.0 : 4.0 / static_cast<double>(shape.element_size);
  const double partial = a.per_kv_head * visited.partial_rows * a.value_dim * sum_elements;
  a.tensor("q", a.per_head * a.q_rows * a.head_dim, 0);
  a.tensor("k", keys * a.head_dim, 0);
  a.tensor("v", keys * a.value_dim, 0);
  a.tensor("partial", partial, partial);
  a.tensor("out", 0, a.per_head * a.q_rows * a.value_dim);
}

void flash2_backward(Account a, const TileVisits& visited) {
  const double rows = a.per_head * visited.rows;
  const double queries = a.per_head * a.q_rows;
  outer_keys(a, true);
  a.tensor("q", rows * a.head_dim, 0);
  a.tensor("out", queries * a.value_dim, 0);
  a.tensor("dout", (queries + rows) * a.value_dim, 0);
  a.tensor("dq", rows * a.head_dim, rows * a.head_dim);
}

// Returns 2 flops per multiply-add per visible pair: S and P V forward; S again, dV, dP, dQ, dK
// backward. online_softmax forms S twice.
double flops_per_pair(Algorithm algorithm, bool backward, const AttentionShape& shape) {
  const double head_dim = static_cast<double>(shape.head_dim);
  const double value_dim = static_cast<double>(shape.value_dim);
  if (backward) return 6 * head_dim + 4 * value_dim;
  return (algorithm == Algorithm::kOnlineSoftmax ? 4 : 2) * head_dim + 2 * value_dim;
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kThreePass:
      return "three_pass";
    case Algorithm::kOnlineSoftmax:
      return "online_softmax";
    case Algorithm::kFlash1:
      return "flash1";
    case Algorithm::kFlashDecoding:
      return "flash_decoding";
    case Algorithm::kFlashDecodingPp:
      return "flash_decoding_pp";
    case Algorithm::kFlash2:
      break;
  }
  return "flash2";
}

bool has_backward(Algorithm algorithm) {
  return algorithm != Algorithm::kFlashDecoding && algorithm != Algorithm::kFlashDecodingPp;
}

TileSizes flash1_tiles(std::int64_t sram_elements, std::int64_t head_dim, std::int64_t value_dim) {
  const std::int64_t rows = math::max(1, math::ceil_div(sram_elements, 2 * (head_dim + value_dim)));
  return {math::min(rows, head_dim), rows};
}

TileSizes flash2_tiles(std::int64_t sram_elements, std::int64_t head_dim, std::int64_t value_dim) {
  // This is the positive root of rows^2 + 2 (D + Dv) rows = M.
  const double half = static_cast<double>(head_dim) + static_cast<double>(value_dim);
  const double root = std::sqrt(half * half + static_cast<double>(sram_elements)) - half;
  std::int64_t rows = math::max(1, static_cast<std::int64_t>(root));
  if (rows >= 16) rows -= rows % 16;
  return {rows, rows};
}

AttentionShape shape_of(const problem::Problem& problem) {
  AttentionShape shape;
  shape.batch = problem.batch;
  shape.q_len = problem.q_rows;
  shape.k_len = problem.k_rows;
  shape.heads = problem.heads;
  shape.kv_heads = problem.kv_heads;
  shape.head_dim = problem.head_dim;
  shape.value_dim = problem.value_dim;
  shape.element_size = problem::dtype_size(problem.dtype);
  shape.window_left = problem.window_left;
  shape.window_right = problem.window_right;
  shape.top_left = problem.top_left;
  return shape;
}

double Prediction::read_bytes() const {
  double total = 0;
  for (const TensorTraffic& tensor : rows()) total += tensor.read_bytes;
  return total;
}

double Prediction::written_bytes() const {
  double total = 0;
  for (const TensorTraffic& tensor : rows()) total += tensor.written_bytes;
  return total;
}

double Prediction::intensity() const { return bytes() > 0 ? flops / bytes() : 0; }

Prediction predict(Algorithm algorithm, Operation operation, const AttentionShape& shape,
                   std::int64_t sram_bytes) {
  const bool backward = operation == Operation::kBackward;
  const std::int64_t sram_elements = sram_bytes / shape.element_size;
  const double visible = visible_pairs(shape);
  Prediction prediction;
  const Account account(shape, &prediction);
  prediction.flops = account.per_head * visible * flops_per_pair(algorithm, backward, shape);
  switch (algorithm) {
    case Algorithm::kThreePass:
      three_pass(account, backward);
      break;
    case Algorithm::kOnlineSoftmax:
      online_softmax(account, backward, visible);
      break;
    case Algorithm::kFlash1:
      prediction.tiles = flash1_tiles(sram_elements, shape.head_dim, shape.value_dim);
      flash1(account, backward, visits(shape, prediction.tiles));
      break;
    case Algorithm::kFlash2: {
      prediction.tiles = flash2_tiles(sram_elements, shape.head_dim, shape.value_dim);
      const TileVisits visited = visits(shape, prediction.tiles);
      backward ? flash2_backward(account, visited) : flash2_forward(account, visited);
      break;
    }
    case Algorithm::kFlashDecoding:
    case Algorithm::kFlashDecodingPp:
      prediction.tiles = flash2_tiles(sram_elements, shape.head_dim, shape.value_dim);
      flash_decoding(account, shape, split_visits(shape, prediction.tiles));
      break;
  }
  return prediction;
}

double predicted_traffic(Algorithm algorithm, const problem::Problem& problem,
                         std::int64_t sram_bytes) {
  const bool dense = !problem.varlen_q() && !problem.k_packed && !problem.slices.present() &&
                     !problem.seqused_k.present();
  const bool whole = !problem.accumulate && !problem.parts.present();
  const bool plain_scores = !problem.mask.present() && !problem.bias.present() &&
                            !(problem.operation == Operation::kBackward &&
                              (problem.softcap > 0 || problem.has_score_function()));
  const bool one_size = !problem::is_fp8(problem.dtype);  // q and out may be larger than k and v
  if (!dense || !whole || !plain_scores || !one_size)
    return std::numeric_limits<double>::quiet_NaN();
  return predict(algorithm, problem.operation, shape_of(problem),
                 sram_bytes > 0 ? sram_bytes : problem::kDefaultSramBytes)
      .bytes();
}

}  // namespace tilewise::reference
