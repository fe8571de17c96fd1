#include "cuda/host/bands.h"

#include "math/integer.h"

namespace tilewise::cuda {

// A forward kernel searches by rows, a backward kernel by keys. The rows of a problem fit 32
// bits, and so do the cells of as many slices.
tile::BandCells band_cells_for(const Problem& problem) {
  constexpr std::int64_t kSmallest = 64;
  const std::int64_t slices = math::max(problem.slices.count, 1);
  const bool keys_lead = problem.operation == problem::Operation::kBackward;
  const std::int64_t heads = problem.slices.columns == 6 ? problem.heads + 1 : 1;
  const auto size_for = [&](std::int64_t length, std::int64_t most) {
    return math::max(math::ceil_div(length, math::max(most, 1)), kSmallest);
  };
  const std::int64_t lead = keys_lead ? problem.k_rows : problem.q_rows;
  const std::int64_t other = keys_lead ? problem.q_rows : problem.k_rows;
  const std::int64_t lead_size = size_for(lead, slices / heads);
  const std::int64_t lead_cells = lead / lead_size + 1;
  const std::int64_t other_size = size_for(other, slices / (heads * lead_cells));
  const std::int64_t across = other / other_size + 1;
  tile::BandCells cells;
  cells.rows = static_cast<std::int32_t>(keys_lead ? other_size : lead_size);
  cells.keys = static_cast<std::int32_t>(keys_lead ? lead_size : other_size);
  cells.across = static_cast<std::int32_t>(across);
  cells.of_head = static_cast<std::int32_t>(lead_cells * across);
  cells.count = static_cast<std::int32_t>(heads * lead_cells * across);
  cells.keys_lead = keys_lead ? 1 : 0;
  return cells;
}

std::int64_t band_table_bytes(const Problem& problem) {
  const std::int64_t slices = problem.slices.count;
  return slices > 0 ? tile::BandTable::bytes(slices, band_cells_for(problem).count) : 0;
}

}  // namespace tilewise::cuda
