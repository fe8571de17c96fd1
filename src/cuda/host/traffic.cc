#include "cuda/host/traffic.h"

#include <cmath>
#include <limits>

#include "cuda/tile/bands.h"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

using problem::Problem;

math::Band band_of(const Problem& problem) {
  const std::int64_t diagonal = problem.top_left ? 0 : problem.k_rows - problem.q_rows;
  return math::window_band(problem.q_rows, problem.k_rows, diagonal, problem.window_left,
                           problem.window_right);
}

// There is none if the traffic depends on the contents of tensors, which the host cannot read, or
// if bias and mask add to it.
bool has_closed_form(const Problem& problem) {
  return !problem.varlen_q() && !problem.k_packed && !problem.slices.present() &&
         !problem.seqused_k.present() && !problem.mask.present() && !problem.bias.present() &&
         !problem.accumulate && !problem.parts.present();
}

// The bytes of a query (its rows of Q and of out) and of a key (its rows of K and V).
std::int64_t q_bytes(const Problem& problem) {
  return problem.head_dim * problem::dtype_size(problem.dtype);
}
std::int64_t out_bytes(const Problem& problem) {
  return problem.value_dim * problem::dtype_size(problem.out.dtype);
}
std::int64_t key_bytes(const Problem& problem) {
  return (problem.head_dim + problem.value_dim) * problem::dtype_size(problem.dtype);
}
// The bytes of a query's row of out between two tiles of keys, in FlashAttention-1.
std::int64_t partial_bytes(const Problem& problem) { return value_stride(problem) * 4; }

double heads_of(const Problem& problem) {
  return static_cast<double>(problem.batch) * static_cast<double>(problem.heads);
}

double kv_heads_of(const Problem& problem) {
  return static_cast<double>(problem.batch) * static_cast<double>(problem.kv_heads);
}

// The bytes of a row of a gradient; 0 if it is not asked for.
std::int64_t gradient_bytes(const problem::View& view, std::int64_t columns) {
  return columns * problem::dtype_size(view.dtype);
}
// The bytes of a row of dO, and of a row of dK and of dV.
std::int64_t dout_bytes(const Problem& problem) {
  return problem.value_dim * problem::dtype_size(problem.dout.dtype);
}
std::int64_t key_gradient_bytes(const Problem& problem) {
  return gradient_bytes(problem.dk, problem.head_dim) +
         gradient_bytes(problem.dv, problem.value_dim);
}
// The bytes of the sums of dQ of a tile of queries.
std::int64_t sum_bytes(const Problem& problem, const GradientTiles& tiles) {
  return problem.dq.present() ? std::int64_t{4} * tiles.sizes.q_rows * tiles.columns : 0;
}

void add_kv_heads(const Problem& problem, const problem::Traffic& head, problem::Traffic* traffic) {
  traffic->read_bytes += problem.batch * problem.kv_heads * head.read_bytes;
  traffic->written_bytes += problem.batch * problem.kv_heads * head.written_bytes;
}

void add_heads(const Problem& problem, const problem::Traffic& head, problem::Traffic* traffic) {
  traffic->read_bytes += problem.batch * problem.heads * head.read_bytes;
  traffic->written_bytes += problem.batch * problem.heads * head.written_bytes;
}

}  // namespace

void count_traffic(const Problem& problem, const tile::Schedule& schedule, TileSizes tiles,
                   problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  const tile::Band band = tile::narrow_band(band_of(problem), -1);
  const std::int32_t rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t keys = static_cast<std::int32_t>(problem.k_rows);
  for (std::int32_t index = 0; index < schedule.count(); ++index) {
    const std::int32_t first = schedule.tile_coord(index).q_tile * tiles.q_rows;
    const std::int32_t end = math::min(first + tiles.q_rows, rows);
    traffic->read_bytes += (end - first) * q_bytes(problem);
    traffic->written_bytes += (end - first) * out_bytes(problem);
    const tile::Range visible = tile::keys_of(band, first, end - 1);
    if (visible.begin >= visible.end) continue;
    for (std::int32_t key = visible.begin / tiles.k_rows * tiles.k_rows; key < visible.end;
         key += tiles.k_rows) {
      traffic->read_bytes += (math::min(key + tiles.k_rows, keys) - key) * key_bytes(problem);
    }
  }
}

double predicted_traffic(const Problem& problem, TileSizes tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const math::Band band = band_of(problem);
  std::int64_t keys = 0;  // loaded, over the tiles of queries of a head
  for (std::int64_t row = 0; row < problem.q_rows; row += tiles.q_rows) {
    const math::KeyRange visible =
        math::tile_keys(band, row, math::min(row + tiles.q_rows, problem.q_rows));
    if (visible.begin >= visible.end) continue;
    const std::int64_t last = math::round_up(visible.end, tiles.k_rows);
    keys += math::min(last, problem.k_rows) - visible.begin / tiles.k_rows * tiles.k_rows;
  }
  return heads_of(problem) * (static_cast<double>(problem.q_rows) *
                                  static_cast<double>(q_bytes(problem) + out_bytes(problem)) +
                              static_cast<double>(keys) * static_cast<double>(key_bytes(problem)));
}

std::int64_t value_stride(const Problem& problem) {
  constexpr std::int64_t kChunk = 8;
  return math::round_up(problem.value_dim, kChunk);
}

void count_flash1_traffic(const Problem& problem, TileSizes tiles, problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  const tile::Band band = tile::narrow_band(band_of(problem), -1);
  const std::int32_t rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t keys = static_cast<std::int32_t>(problem.k_rows);
  problem::Traffic head;
  head.written_bytes = rows * out_bytes(problem);
  for (std::int32_t key = 0; key < keys; key += tiles.k_rows) {
    bool is_loaded = false;
    for (std::int32_t first = 0; first < rows; first += tiles.q_rows) {
      const std::int32_t end = math::min(first + tiles.q_rows, rows);
      const tile::Range visible = tile::keys_of(band, first, end - 1);
      if (visible.begin >= visible.end || visible.end <= key || visible.begin >= key + tiles.k_rows)
        continue;
      is_loaded = true;
      head.read_bytes += (end - first) * q_bytes(problem);
      if (visible.begin < key) head.read_bytes += (end - first) * partial_bytes(problem);
      if (visible.end > key + tiles.k_rows)
        head.written_bytes += (end - first) * partial_bytes(problem);
    }
    if (is_loaded)
      head.read_bytes += (math::min(key + tiles.k_rows, keys) - key) * key_bytes(problem);
  }
  add_heads(problem, head, traffic);
}

double predicted_flash1_traffic(const Problem& problem, TileSizes tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const math::Band band = band_of(problem);
  std::int64_t q_passes = 0;    // rows of Q loaded, over the tiles of keys
  std::int64_t out_passes = 0;  // rows of out stored between two tiles of keys
  std::int64_t keys = 0;        // loaded
  std::int64_t covered = 0;     // the end of the keys loaded so far
  for (std::int64_t row = 0; row < problem.q_rows; row += tiles.q_rows) {
    const std::int64_t end = math::min(row + tiles.q_rows, problem.q_rows);
    const math::KeyRange visible = math::tile_keys(band, row, end);
    if (visible.begin >= visible.end) continue;
    const std::int64_t first = visible.begin / tiles.k_rows;
    const std::int64_t last = (visible.end - 1) / tiles.k_rows;
    q_passes += (end - row) * (last + 1 - first);
    out_passes += (end - row) * (last - first);
    const std::int64_t from = math::max(first * tiles.k_rows, covered);
    covered = math::max(math::min((last + 1) * tiles.k_rows, problem.k_rows), covered);
    keys += math::max(covered - from, 0);
  }
  return heads_of(problem) *
         (static_cast<double>(problem.q_rows) * static_cast<double>(out_bytes(problem)) +
          static_cast<double>(q_passes) * static_cast<double>(q_bytes(problem)) +
          2 * static_cast<double>(out_passes) * static_cast<double>(partial_bytes(problem)) +
          static_cast<double>(keys) * static_cast<double>(key_bytes(problem)));
}

void count_standard_traffic(const Problem& problem, TileSizes tiles, problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  constexpr std::int64_t kScoreBytes = 4;
  constexpr std::int64_t kProbBytes = 2;
  problem::Traffic head;
  for (std::int64_t first = 0; first < problem.q_rows; first += tiles.q_rows) {
    const std::int64_t rows = math::min(tiles.q_rows, problem.q_rows - first);
    head.read_bytes += problem.k_rows > 0 ? rows * q_bytes(problem) : 0;
    head.written_bytes += rows * out_bytes(problem);
    for (std::int64_t key = 0; key < problem.k_rows; key += tiles.k_rows) {
      head.read_bytes += math::min(tiles.k_rows, problem.k_rows - key) * key_bytes(problem);
      head.written_bytes += rows * tiles.k_rows * (kScoreBytes + kProbBytes);
      head.read_bytes += rows * tiles.k_rows * (2 * kScoreBytes + kProbBytes);
    }
  }
  add_heads(problem, head, traffic);
}

double predicted_standard_traffic(const Problem& problem, TileSizes tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const double rows = static_cast<double>(problem.q_rows);
  const double keys = static_cast<double>(problem.k_rows);
  const double q_tiles = std::ceil(rows / tiles.q_rows);
  const double columns = std::ceil(keys / tiles.k_rows) * tiles.k_rows;
  const double q_row = static_cast<double>(problem.k_rows > 0 ? q_bytes(problem) : 0);
  return heads_of(problem) *
         (rows * (q_row + static_cast<double>(out_bytes(problem))) +
          q_tiles * keys * static_cast<double>(key_bytes(problem)) + rows * columns * 16);
}

void count_gradient_traffic(const Problem& problem, GradientTiles tiles,
                            problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  const tile::Band band = tile::narrow_band(band_of(problem), -1);
  const std::int32_t rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t keys = static_cast<std::int32_t>(problem.k_rows);
  const std::int64_t sums = sum_bytes(problem, tiles);
  problem::Traffic head, kv_head;
  for (std::int32_t first = 0; first < rows; first += tiles.sizes.q_rows) {
    const std::int32_t count = math::min(tiles.sizes.q_rows, rows - first);
    head.read_bytes += count * (out_bytes(problem) + dout_bytes(problem)) + sums;
    head.written_bytes += count * gradient_bytes(problem.dq, problem.head_dim) + sums;
  }
  for (std::int32_t key = 0; key < keys; key += tiles.sizes.k_rows) {
    const std::int32_t count = math::min(tiles.sizes.k_rows, keys - key);
    kv_head.read_bytes += count * key_bytes(problem);
    kv_head.written_bytes += count * key_gradient_bytes(problem);
    const tile::Range seen = math::tile_rows(band, key, key + tiles.sizes.k_rows);
    if (seen.begin >= seen.end) continue;
    for (std::int32_t first = seen.begin / tiles.sizes.q_rows * tiles.sizes.q_rows;
         first < seen.end; first += tiles.sizes.q_rows) {
      const std::int32_t queries = math::min(tiles.sizes.q_rows, rows - first);
      head.read_bytes += queries * (q_bytes(problem) + dout_bytes(problem));
      head.read_bytes += tiles.loads_sums ? sums : 0;
      head.written_bytes += sums;
    }
  }
  add_heads(problem, head, traffic);
  add_kv_heads(problem, kv_head, traffic);
}

double predicted_gradient_traffic(const Problem& problem, GradientTiles tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const math::Band band = band_of(problem);
  std::int64_t loaded = 0;  // queries, over the tiles of keys
  std::int64_t pairs = 0;   // of tiles that are visited
  for (std::int64_t key = 0; key < problem.k_rows; key += tiles.sizes.k_rows) {
    const math::KeyRange seen = math::tile_rows(band, key, key + tiles.sizes.k_rows);
    if (seen.begin >= seen.end) continue;
    const std::int64_t first = seen.begin / tiles.sizes.q_rows;
    const std::int64_t last = math::ceil_div(seen.end, tiles.sizes.q_rows);
    pairs += last - first;
    loaded += math::min(last * tiles.sizes.q_rows, problem.q_rows) - first * tiles.sizes.q_rows;
  }
  const double rows = static_cast<double>(problem.q_rows);
  const double q_tiles = std::ceil(rows / tiles.sizes.q_rows);
  const double passes = 2 * q_tiles + static_cast<double>(pairs) * (tiles.loads_sums ? 2 : 1);
  return heads_of(problem) *
             (rows * static_cast<double>(out_bytes(problem) + dout_bytes(problem) +
                                         gradient_bytes(problem.dq, problem.head_dim)) +
              static_cast<double>(loaded) *
                  static_cast<double>(q_bytes(problem) + dout_bytes(problem)) +
              passes * static_cast<double>(sum_bytes(problem, tiles))) +
         kv_heads_of(problem) * static_cast<double>(problem.k_rows) *
             static_cast<double>(key_bytes(problem) + key_gradient_bytes(problem));
}

namespace {

// The bytes of a pair of a query and a key in the matrices of standard attention, backward.
struct PairBytes {
  std::int64_t read;
  std::int64_t written;
};
PairBytes gradient_pair_bytes(const Problem& problem) {
  constexpr std::int64_t kFloat = 4;
  constexpr std::int64_t kHalf = 2;
  const std::int64_t matrices = problem.softcap > 0 ? 3 : 2;  // S, dP, and Q K^T for a softcap
  const std::int64_t products = (problem.dv.present() ? 1 : 0) + (problem.dk.present() ? 1 : 0) +
                                (problem.dq.present() ? 1 : 0);
  return {matrices * kFloat + products * kHalf, matrices * kFloat + 2 * kHalf};
}

// The bytes of a query that the products dV = P^T dO and dK = dS^T Q load for each tile of keys.
std::int64_t product_row_bytes(const Problem& problem) {
  return (problem.dv.present() ? dout_bytes(problem) : 0) +
         (problem.dk.present() ? q_bytes(problem) : 0);
}

}  // namespace

void count_standard_gradient_traffic(const Problem& problem, TileSizes tiles,
                                     problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  const PairBytes pair = gradient_pair_bytes(problem);
  const std::int64_t k_row = problem.head_dim * problem::dtype_size(problem.dtype);
  problem::Traffic head, kv_head;
  for (std::int64_t first = 0; first < problem.q_rows; first += tiles.q_rows) {
    const std::int64_t rows = math::min(tiles.q_rows, problem.q_rows - first);
    head.read_bytes += rows * (out_bytes(problem) + dout_bytes(problem));
    head.read_bytes += problem.k_rows > 0 ? rows * (q_bytes(problem) + dout_bytes(problem)) : 0;
    head.written_bytes += rows * gradient_bytes(problem.dq, problem.head_dim);
    for (std::int64_t key = 0; key < problem.k_rows; key += tiles.k_rows) {
      const std::int64_t keys = math::min(tiles.k_rows, problem.k_rows - key);
      head.read_bytes += keys * (key_bytes(problem) + (problem.dq.present() ? k_row : 0));
      head.read_bytes += rows * product_row_bytes(problem) + rows * tiles.k_rows * pair.read;
      head.written_bytes += rows * tiles.k_rows * pair.written;
    }
  }
  kv_head.written_bytes = problem.k_rows * key_gradient_bytes(problem);
  add_heads(problem, head, traffic);
  add_kv_heads(problem, kv_head, traffic);
}

double predicted_standard_gradient_traffic(const Problem& problem, TileSizes tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const double rows = static_cast<double>(problem.q_rows);
  const double keys = static_cast<double>(problem.k_rows);
  const double q_tiles = std::ceil(rows / tiles.q_rows);
  const double k_tiles = std::ceil(keys / tiles.k_rows);
  const PairBytes pair = gradient_pair_bytes(problem);
  const std::int64_t k_row =
      problem.dq.present() ? problem.head_dim * problem::dtype_size(problem.dtype) : 0;
  const std::int64_t products = problem.k_rows > 0 ? q_bytes(problem) + dout_bytes(problem) : 0;
  return heads_of(problem) *
             (rows * static_cast<double>(out_bytes(problem) + dout_bytes(problem) + products +
                                         gradient_bytes(problem.dq, problem.head_dim)) +
              k_tiles * rows * static_cast<double>(product_row_bytes(problem)) +
              q_tiles * keys * static_cast<double>(key_bytes(problem) + k_row) +
              rows * k_tiles * tiles.k_rows * static_cast<double>(pair.read + pair.written)) +
         kv_heads_of(problem) * keys * static_cast<double>(key_gradient_bytes(problem));
}

}  // namespace tilewise::cuda
