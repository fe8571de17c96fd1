#include "brute_force.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "verify/tensor.h"

namespace tilewise::reference_test {
namespace {

constexpr long double kInfinity = std::numeric_limits<long double>::infinity();

Array copy(const tilewise_tensor& tensor) {
  Array array;
  array.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    array.values.push_back(verify::read_element(tensor, offset));
  });
  return array;
}

std::int64_t index_at(const tilewise_tensor& tensor, std::int64_t row, std::int64_t column = 0) {
  const std::int64_t offset = row * tensor.strides[0] + column * tensor.strides[1];
  return tensor.dtype == TILEWISE_INT64 ? static_cast<const std::int64_t*>(tensor.data)[offset]
                                        : static_cast<const std::int32_t*>(tensor.data)[offset];
}

// Returns the row-major index of (b, h, i, j) in a tensor that broadcasts to (B, H, Sq, Sk).
std::int64_t broadcast_place(const std::int64_t* shape, int rank, const std::int64_t (&index)[4]) {
  std::int64_t place = 0;
  for (int d = 0; d < rank; ++d)
    place = place * shape[d] + (shape[d] == 1 ? 0 : index[4 - rank + d]);
  return place;
}

struct Words {
  std::uint32_t word[4];
};

// Philox-4x32-10 as its authors describe it: rounds of two multiplications, and a new key for each
// round.
Words philox(Words x, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const std::uint64_t first = 0xD2511F53ull * x.word[0];
    const std::uint64_t second = 0xCD9E8D57ull * x.word[2];
    const std::uint32_t high1 = static_cast<std::uint32_t>(first >> 32);
    const std::uint32_t high2 = static_cast<std::uint32_t>(second >> 32);
    x = {{high2 ^ x.word[1] ^ key0, static_cast<std::uint32_t>(second), high1 ^ x.word[3] ^ key1,
          static_cast<std::uint32_t>(first)}};
  }
  return x;
}

}  // namespace

std::int64_t BruteForce::Row::diagonal() const {
  return top_left ? 0 : (keys.end - keys.begin) - q_len;
}

BruteForce::BruteForce(const tilewise_problem& request) : request_(request) {
  q = copy(request.q);
  k = copy(request.k);
  v = copy(request.v);
  bias = copy(request.bias);
  sink = copy(request.sink);
  slopes = copy(request.alibi_slopes);
  dout = copy(request.dout);
  dlse = copy(request.dlse);
  out = copy(request.out);
  lse.shape = {1};
  q_packed_ = request.q.rank == 3;
  k_packed_ = request.k.rank == 3;
  const bool heads_first = request.layout == TILEWISE_BHSD;
  heads_ = request.q.shape[q_packed_ || heads_first ? 1 : 2];
  const std::int64_t kv_heads = request.k.shape[k_packed_ || heads_first ? 1 : 2];
  group_ = kv_heads > 0 ? heads_ / kv_heads : 1;
  batch_ = !q_packed_ ? request.q.shape[0] : !k_packed_ ? request.k.shape[0] : 1;
  if (request.cu_seqlens_q.rank != 0) batch_ = request.cu_seqlens_q.shape[0] - 1;
  scale_ = std::isinf(request.softmax_scale)
               ? 1 / std::sqrt(static_cast<long double>(q.shape.back()))
               : static_cast<long double>(request.softmax_scale);
}

std::int64_t BruteForce::query_rows() const {
  const bool heads_first = !q_packed_ && request_.layout == TILEWISE_BHSD;
  return q.shape[q_packed_ ? 0 : heads_first ? 2 : 1];
}

BruteForce::Range BruteForce::query_range(std::int64_t b) const {
  Range range = {0, query_rows()};
  if (request_.cu_seqlens_q.rank != 0) {
    range = {index_at(request_.cu_seqlens_q, b), index_at(request_.cu_seqlens_q, b + 1)};
  }
  if (request_.seqused_q.rank != 0)
    range.end = std::min(range.end, range.begin + index_at(request_.seqused_q, b));
  return range;
}

BruteForce::Range BruteForce::key_range(std::int64_t b) const {
  const bool heads_first = !k_packed_ && request_.layout == TILEWISE_BHSD;
  Range range = {0, k.shape[k_packed_ ? 0 : heads_first ? 2 : 1]};
  if (request_.cu_seqlens_k.rank != 0) {
    range = {index_at(request_.cu_seqlens_k, b), index_at(request_.cu_seqlens_k, b + 1)};
  }
  if (request_.seqused_k.rank != 0) range.end = range.begin + index_at(request_.seqused_k, b);
  return range;
}

std::size_t BruteForce::place(const Array& array, bool packed, std::int64_t b, std::int64_t h,
                              std::int64_t token) const {
  const std::vector<std::int64_t>& s = array.shape;
  if (packed) return static_cast<std::size_t>((token * s[1] + h) * s[2]);
  if (request_.layout == TILEWISE_BHSD)
    return static_cast<std::size_t>(((b * s[1] + h) * s[2] + token) * s[3]);
  return static_cast<std::size_t>(((b * s[1] + token) * s[2] + h) * s[3]);
}

bool BruteForce::slice_shows(const Row& row, std::int64_t j) const {
  const tilewise_tensor& slices = request_.slices;
  for (std::int64_t s = 0; s < slices.shape[0]; ++s) {
    const std::int64_t q0 = index_at(slices, s, 0), q1 = index_at(slices, s, 1);
    const std::int64_t k0 = index_at(slices, s, 2), k1 = index_at(slices, s, 3);
    const std::int64_t kind = index_at(slices, s, 4);
    const std::int64_t head = slices.shape[1] == 6 ? index_at(slices, s, 5) : -1;
    if (head != -1 && head != row.head) continue;
    if (row.i < q0 || row.i >= q1 || j < k0 || j >= k1) continue;
    const std::int64_t local_i = row.i - q0, local_j = j - k0;
    const std::int64_t d = (k1 - k0) - (q1 - q0);
    if ((kind == 1 || kind == 3) && local_j > local_i + d) continue;
    if ((kind == 2 || kind == 3) && local_j < local_i) continue;
    return true;
  }
  return false;
}

bool BruteForce::visible(const Row& row, std::int64_t j) const {
  if (request_.slices.rank != 0) {
    if (!slice_shows(row, j)) return false;
  } else {
    const std::int64_t center = row.i + row.diagonal();
    if (request_.causal && j > center) return false;
    if (request_.window_left >= 0 && j < center - request_.window_left) return false;
    if (request_.window_right >= 0 && j > center + request_.window_right) return false;
  }
  if (request_.mask.rank == 0) return true;
  const std::int64_t index[4] = {row.batch, row.head, row.i, j};
  return static_cast<const std::uint8_t*>(
             request_.mask.data)[broadcast_place(request_.mask.shape, request_.mask.rank, index)] !=
         0;
}

long double BruteForce::score(const Row& row, std::int64_t j) const {
  const std::size_t query = place(q, q_packed_, row.batch, row.head, row.token);
  const std::size_t key = place(k, k_packed_, row.batch, row.head / group_, row.keys.begin + j);
  long double score = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(q.shape.back()); ++d) {
    score += q.values[query + d] * k.values[key + d];
  }
  score *= scale_;
  if (request_.softcap > 0) {
    const long double cap = request_.softcap;
    score = cap * std::tanh(score / cap);
  }
  if (bias.present()) {
    const std::int64_t index[4] = {row.batch, row.head, row.i, j};
    score += bias.values[static_cast<std::size_t>(
        broadcast_place(bias.shape.data(), static_cast<int>(bias.shape.size()), index))];
  }
  if (request_.alibi_slopes.rank != 0) {
    const std::int64_t slope = slopes.shape.size() == 2 ? row.batch * heads_ + row.head : row.head;
    const std::int64_t distance = row.i + row.diagonal() - j;
    score -= slopes.values[static_cast<std::size_t>(slope)] *
             static_cast<long double>(distance < 0 ? -distance : distance);
  }
  return score;
}

long double BruteForce::dropout(const Row& row, std::int64_t j) const {
  const double p = request_.dropout_p;
  if (p == 0) return 1;
  const Words counter = {{static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(row.i),
                          static_cast<std::uint32_t>(row.batch * heads_ + row.head),
                          static_cast<std::uint32_t>(request_.dropout_offset)}};
  const Words words = philox(counter, static_cast<std::uint32_t>(request_.dropout_seed),
                             static_cast<std::uint32_t>(request_.dropout_seed >> 32));
  const long double threshold = std::round(static_cast<long double>(p) * 4294967296.0L);
  return static_cast<long double>(words.word[j % 4]) >= threshold
             ? 1 / (1 - static_cast<long double>(p))
             : 0;
}

void BruteForce::run_row(const Row& row) {
  const std::int64_t k_len = row.keys.end - row.keys.begin;
  std::vector<long double> scores(static_cast<std::size_t>(k_len), -kInfinity);
  const bool has_sink = sink.present();
  long double max = has_sink ? sink.values[static_cast<std::size_t>(row.head)] : -kInfinity;
  for (std::int64_t j = 0; j < k_len; ++j) {
    if (!visible(row, j)) continue;
    long double& s = scores[static_cast<std::size_t>(j)];
    s = score(row, j);
    if (s > max) max = s;
  }
  long double sum = has_sink ? std::exp(sink.values[static_cast<std::size_t>(row.head)] - max) : 0;
  for (const long double s : scores) sum += s == -kInfinity ? 0 : std::exp(s - max);
  const std::size_t to = place(out, q_packed_, row.batch, row.head, row.token);
  for (std::int64_t j = 0; j < k_len; ++j) {
    const long double s = scores[static_cast<std::size_t>(j)];
    if (s == -kInfinity) continue;
    const long double prob = std::exp(s - max) / sum * dropout(row, j);
    const std::size_t from = place(v, k_packed_, row.batch, row.head / group_, row.keys.begin + j);
    for (std::size_t c = 0; c < static_cast<std::size_t>(v.shape.back()); ++c) {
      out.values[to + c] += prob * v.values[from + c];
    }
  }
  const std::int64_t rows = query_rows();
  const std::int64_t first = q_packed_ ? row.head * rows : (row.batch * heads_ + row.head) * rows;
  lse.values[static_cast<std::size_t>(first + row.token)] =
      sum == 0 ? -kInfinity : max + std::log(sum);
}

void BruteForce::run() {
  out.values.assign(out.values.size(), 0);
  lse.values.assign(static_cast<std::size_t>((q_packed_ ? 1 : batch_) * heads_ * query_rows()),
                    -kInfinity);
  for (std::int64_t b = 0; b < batch_; ++b) {
    const Range queries = query_range(b);
    const Range keys = key_range(b);
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t token = queries.begin; token < queries.end; ++token) {
        run_row({b, h, token - queries.begin, token, queries.end - queries.begin, keys,
                 request_.alignment == TILEWISE_TOP_LEFT});
      }
    }
  }
}

long double BruteForce::loss() {
  run();
  long double sum = 0;
  for (std::size_t i = 0; i < dout.values.size(); ++i) sum += out.values[i] * dout.values[i];
  for (std::size_t i = 0; i < dlse.values.size(); ++i) {
    if (lse.values[i] != -kInfinity) sum += lse.values[i] * dlse.values[i];
  }
  return sum;
}

std::vector<double> BruteForce::gradient(Array* array) {
  const long double h = 0x1p-11L;
  std::vector<double> gradient;
  for (long double& x : array->values) {
    const long double at = x;
    const std::function<long double(int)> loss_at = [&](int steps) {
      x = at + static_cast<long double>(steps) * h;
      return loss();
    };
    const long double slope =
        (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * h);
    x = at;
    gradient.push_back(static_cast<double>(slope));
  }
  return gradient;
}

}  // namespace tilewise::reference_test
