#include "cuda/traffic.h"

#include <limits>

#include "cuda/tile/bands.h"

namespace tilewise::cuda {
namespace {

using problem::Problem;

math::Band band_of(const Problem& problem) {
  const std::int64_t diagonal = problem.top_left ? 0 : problem.k_rows - problem.q_rows;
  return math::window_band(problem.q_rows, problem.k_rows, diagonal, problem.window_left,
                           problem.window_right);
}

// Not where the traffic depends on what is in the tensors, which the host cannot read, or bias and
// mask add to it.
bool has_closed_form(const Problem& problem) {
  return !problem.q_packed && !problem.k_packed && !problem.slices.present() &&
         !problem.seqused_k.present() && !problem.mask.present() && !problem.bias.present();
}

// Of a query: its row of Q and of out. Of a key: its rows of K and V.
std::int64_t q_bytes(const Problem& problem) {
  return problem.head_dim * problem::dtype_size(problem.dtype);
}
std::int64_t out_bytes(const Problem& problem) {
  return problem.value_dim * problem::dtype_size(problem.out.dtype);
}
std::int64_t key_bytes(const Problem& problem) {
  return (problem.head_dim + problem.value_dim) * problem::dtype_size(problem.dtype);
}

}  // namespace

void count_traffic(const Problem& problem, const tile::Schedule& schedule, TileSizes tiles,
                   problem::Traffic* traffic) {
  if (traffic == nullptr || !has_closed_form(problem)) return;
  const tile::Band band = tile::narrow_band(band_of(problem), -1);
  const std::int32_t rows = static_cast<std::int32_t>(problem.q_rows);
  const std::int32_t keys = static_cast<std::int32_t>(problem.k_rows);
  for (std::int32_t index = 0; index < schedule.count(); ++index) {
    const std::int32_t first = schedule.work(index).q_tile * tiles.q_rows;
    const std::int32_t end = tile::smaller(first + tiles.q_rows, rows);
    traffic->read_bytes += (end - first) * q_bytes(problem);
    traffic->written_bytes += (end - first) * out_bytes(problem);
    const tile::Range seen = tile::keys_of(band, first, end - 1);
    if (seen.begin >= seen.end) continue;
    for (std::int32_t key = seen.begin / tiles.k_rows * tiles.k_rows; key < seen.end;
         key += tiles.k_rows) {
      traffic->read_bytes += (tile::smaller(key + tiles.k_rows, keys) - key) * key_bytes(problem);
    }
  }
}

double predicted_traffic(const Problem& problem, TileSizes tiles) {
  if (!has_closed_form(problem)) return std::numeric_limits<double>::quiet_NaN();
  const math::Band band = band_of(problem);
  std::int64_t keys = 0;  // over the tiles of queries of a head
  for (std::int64_t row = 0; row < problem.q_rows; row += tiles.q_rows) {
    const math::KeyRange seen =
        math::tile_keys(band, row, math::lesser(row + tiles.q_rows, problem.q_rows));
    if (seen.begin >= seen.end) continue;
    const std::int64_t last = (seen.end + tiles.k_rows - 1) / tiles.k_rows * tiles.k_rows;
    keys += math::lesser(last, problem.k_rows) - seen.begin / tiles.k_rows * tiles.k_rows;
  }
  const double heads = static_cast<double>(problem.batch) * static_cast<double>(problem.heads);
  return heads * (static_cast<double>(problem.q_rows) *
                      static_cast<double>(q_bytes(problem) + out_bytes(problem)) +
                  static_cast<double>(keys) * static_cast<double>(key_bytes(problem)));
}

}  // namespace tilewise::cuda
