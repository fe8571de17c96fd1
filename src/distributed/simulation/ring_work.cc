#include <algorithm>

#include "distributed/magi/area.h"
#include "distributed/simulation/work.h"
#include "distributed/whole.h"

namespace tilewise::distributed::simulation {
namespace {

using magi::Mask;
using magi::MaskBand;
using magi::Range;

constexpr std::int64_t kMostPieces = std::int64_t{1} << 28;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

// ceil(a / b) for any a, b > 0.
std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) {
  return a >= 0 ? math::ceil_div(a, b) : -(-a / b);
}

// The union of bands, which are trimmed, of one piece of queries and one of keys.
std::int64_t area_of(const Mask& mask, const std::vector<MaskBand>& bands) {
  if (bands.empty()) return 0;
  if (bands.size() == 1 && bands[0].head == -1) {
    const math::Band& band = bands[0].band;
    return mask.heads * band_area(band, band.row_begin, band.row_end);
  }
  return magi::total_area({mask.q_len, mask.k_len, mask.heads, bands});
}

// Pieces of an axis: piece p is [bounds[p], bounds[p + 1]). Rank r of a ring has piece r of R;
// zigzag: the pieces r and 2R - 1 - r of 2R. They are the contiguous shards of as many ranks.
std::vector<std::int64_t> bounds_of(std::int64_t rows, std::int64_t pieces) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t p = 0; p < pieces; ++p) {
    bounds.push_back(shard_of(Schedule::kContiguous, rows, static_cast<std::int32_t>(pieces),
                              static_cast<std::int32_t>(p))
                         .ranges[0]
                         .begin);
  }
  bounds.push_back(rows);
  return bounds;
}

std::int64_t rank_of_piece(std::int64_t piece, std::int64_t pieces, std::int64_t ranks) {
  return pieces == ranks || piece < ranks ? piece : pieces - 1 - piece;
}

// Areas by rank of the queries and rank of the keys, and the other numbers that a ring of shards
// needs.
struct Pairs {
  std::int64_t ranks;
  std::vector<std::int64_t> areas;   // (ranks, ranks)
  std::vector<std::int64_t> q_rows;  // (ranks)
  std::vector<std::int64_t> k_rows;

  explicit Pairs(std::int64_t count)
      : ranks(count), areas(index(count * count)), q_rows(index(count)), k_rows(index(count)) {}
  std::int64_t& area(std::int64_t q_rank, std::int64_t k_rank) {
    return areas[index(q_rank * ranks + k_rank)];
  }
};

Pairs pairs_of_pieces(const Mask& mask, std::int64_t ranks, std::int64_t pieces) {
  Pairs pairs(ranks);
  const std::vector<std::int64_t> q_bounds = bounds_of(mask.q_len, pieces);
  const std::vector<std::int64_t> k_bounds = bounds_of(mask.k_len, pieces);
  std::vector<std::vector<MaskBand>> of_key_piece(index(pieces));
  for (std::int64_t p = 0; p < pieces; ++p) {
    const std::int64_t rank = rank_of_piece(p, pieces, ranks);
    const Range rows = {q_bounds[index(p)], q_bounds[index(p + 1)]};
    pairs.q_rows[index(rank)] += rows.end - rows.begin;
    pairs.k_rows[index(rank)] += k_bounds[index(p + 1)] - k_bounds[index(p)];
    for (const MaskBand& entry : mask.bands) {
      MaskBand part = {magi::crop(entry.band, rows, {0, mask.k_len}), entry.head};
      if (!magi::trim(part.band)) continue;
      const auto after =
          std::upper_bound(k_bounds.begin(), k_bounds.end(), part.band.key_begin) - 1;
      for (std::int64_t k = after - k_bounds.begin();
           k < pieces && k_bounds[index(k)] < part.band.key_end; ++k) {
        MaskBand cut = {magi::crop(part.band, rows, {k_bounds[index(k)], k_bounds[index(k + 1)]}),
                        entry.head};
        if (magi::trim(cut.band)) of_key_piece[index(k)].push_back(cut);
      }
    }
    for (std::int64_t k = 0; k < pieces; ++k) {
      pairs.area(rank, rank_of_piece(k, pieces, ranks)) += area_of(mask, of_key_piece[index(k)]);
      of_key_piece[index(k)].clear();
    }
  }
  return pairs;
}

// Rows q + a R and keys k + b R of the band, as a band of (a, b): its edges keep their slopes.
math::Band strided(const math::Band& band, std::int64_t q, std::int64_t k, std::int64_t ranks) {
  const auto rows = [&](std::int64_t row) { return ceil_quotient(row - q, ranks); };
  const auto keys = [&](std::int64_t key) { return ceil_quotient(key - k, ranks); };
  const auto edge = [&](std::int64_t slope, std::int64_t offset) {
    return slope ? ceil_quotient(q - k + offset, ranks) : keys(offset);
  };
  return {rows(band.row_begin), rows(band.row_end),
          keys(band.key_begin), keys(band.key_end),
          band.lower_slope,     edge(band.lower_slope, band.lower_offset),
          band.upper_slope,     edge(band.upper_slope, band.upper_offset)};
}

Pairs striped_pairs(const Mask& mask, std::int64_t ranks) {
  Pairs pairs(ranks);
  std::vector<MaskBand> bands;
  for (std::int64_t q = 0; q < ranks; ++q) {
    pairs.q_rows[index(q)] = math::max(ceil_quotient(mask.q_len - q, ranks), 0);
    pairs.k_rows[index(q)] = math::max(ceil_quotient(mask.k_len - q, ranks), 0);
    for (std::int64_t k = 0; k < ranks; ++k) {
      bands.clear();
      for (const MaskBand& entry : mask.bands) {
        MaskBand part = {strided(entry.band, q, k, ranks), entry.head};
        if (magi::trim(part.band)) bands.push_back(part);
      }
      pairs.area(q, k) = area_of(mask, bands);
    }
  }
  return pairs;
}

Work work_of(Pairs& pairs) {
  Work work;
  const std::int64_t ranks = pairs.ranks;
  work.ranks = ranks;
  work.steps = ranks;
  work.q_rows = pairs.q_rows;
  work.table.resize(index(ranks * ranks));
  for (std::int64_t owner = 0; owner < ranks; ++owner) {
    std::int64_t last = 0;  // the last step in which a rank sees the keys
    for (std::int64_t step = 0; step < ranks; ++step) {
      const std::int64_t rank = (owner + step) % ranks;
      const std::int64_t area = pairs.area(rank, owner);
      work.at(rank, step).area = area;
      work.area += area;
      if (area > 0) last = step;
    }
    const std::int64_t rows = pairs.k_rows[index(owner)];
    for (std::int64_t step = 1; step <= last && rows > 0; ++step) {
      Step& receives = work.at((owner + step) % ranks, step);
      Step& sends = work.at((owner + step - 1) % ranks, step);
      receives.received_rows = rows;
      sends.sent_rows = rows;
      receives.messages = sends.messages = 1;
    }
  }
  return work;
}

}  // namespace

problem::Status ring_work(const Mask& mask, Schedule schedule, std::int64_t ranks, Work* work) {
  // Striped keys see nearly every band from every rank; contiguous ones only where they lie.
  const std::int64_t bands = static_cast<std::int64_t>(mask.bands.size());
  const std::int64_t pairs =
      schedule == Schedule::kStriped ? ranks * math::max(bands, 1) : math::max(2 * ranks, bands);
  if (pairs > kMostPieces / ranks) {
    return problem::fail(
        TILEWISE_UNSUPPORTED, "%s: %lld ranks and %lld slices are too many to simulate",
        schedule_name(schedule), static_cast<long long>(ranks), static_cast<long long>(bands));
  }
  Pairs areas =
      schedule == Schedule::kStriped
          ? striped_pairs(mask, ranks)
          : pairs_of_pieces(mask, ranks, schedule == Schedule::kZigzag ? 2 * ranks : ranks);
  *work = work_of(areas);
  work->schedule = schedule;
  return TILEWISE_OK;
}

}  // namespace tilewise::distributed::simulation
