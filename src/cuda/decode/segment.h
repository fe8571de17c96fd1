// The work of decoding, and how blocks divide it.
//
// A segment is a tile of rows of queries of some kv heads of one sequence: the rows of all query
// heads of a kv head's group (GQA), head after head, share the head's K and V. Its keys are cut
// into tiles, and tiles into units. The units of all segments are numbered one after the other, and
// gangs of blocks take equal shares of the numbers, whatever the lengths of the sequences. Each
// block of a gang has one of the kv heads: the heads of a token lie next to each other in memory,
// and are read at the same time.
//
// A share may end within a segment, so a segment consists of the parts that gangs compute of it
// (Flash-Decoding, with shares in place of splits). With fixed parts, every unit is a part: the
// bits of a row do not depend on what else is in the batch.
//
// Plain functions of host and device.
#pragma once

#include "cuda/decode/parameters.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::decode {

struct Segment {
  Sequence sequence;
  tile::WindowBand band;
  tile::Range keys;        // that some row of the sequence sees
  tile::Range full;        // that all of them see
  std::int32_t segments;   // of the sequence
  std::int32_t index;      // among them
  std::int32_t kv_head;    // of the block
  std::int32_t first_row;  // among the rows of the sequence and kv head
  std::int32_t rows;       // of the segment
  std::int32_t tiles;      // of keys, at least 1
  std::int32_t units;
  std::int32_t first_unit;

  TILEWISE_INLINE std::int32_t end_unit() const { return first_unit + units; }
  TILEWISE_INLINE std::int32_t first_tile(std::int32_t block_keys) const {
    return keys.begin / block_keys;
  }
};

// Fills in what the segments of a sequence have in common.
TILEWISE_INLINE void describe_sequence(const Parameters& parameters, const Sequence& sequence,
                                       Segment& segment) {
  const auto q_len = static_cast<std::int32_t>(sequence.q_len);
  segment.sequence = sequence;
  segment.band = tile::window_band(static_cast<std::int32_t>(sequence.k_len),
                                   static_cast<std::int32_t>(sequence.diagonal),
                                   parameters.window_left, parameters.window_right);
  segment.keys = {segment.band.begin(0), segment.band.end(q_len - 1)};
  if (segment.keys.begin >= segment.keys.end) segment.keys = {0, 0};
  segment.full = {segment.band.begin(q_len - 1), segment.band.end(0)};
  segment.segments =
      parameters.head_tiles * math::ceil_div(parameters.group * q_len, parameters.q_tile);
  segment.tiles = math::max(math::ceil_div(segment.keys.end, parameters.block_keys) -
                                segment.first_tile(parameters.block_keys),
                            1);
  segment.units = math::ceil_div(segment.tiles, parameters.unit_tiles);
}

// Fills in segment `index` of the sequence, for a member of a gang.
TILEWISE_INLINE void set_segment(const Parameters& parameters, std::int32_t index,
                                 std::int32_t member, std::int32_t first_unit, Segment& segment) {
  const std::int32_t rows = parameters.group * static_cast<std::int32_t>(segment.sequence.q_len);
  const std::int32_t row_tiles = segment.segments / parameters.head_tiles;
  segment.index = index;
  segment.kv_head = index / row_tiles * parameters.gang + member;
  segment.first_row = index % row_tiles * parameters.q_tile;
  segment.rows = math::min(rows - segment.first_row, parameters.q_tile);
  segment.first_unit = first_unit;
}

// The shares of the gangs: the first `longer` of them have one unit more.
class Shares {
 public:
  TILEWISE_INLINE Shares(const Parameters& parameters, std::int32_t units)
      : gangs_(math::max(math::min(units / parameters.least_units, parameters.gangs), 1)),
        units_of_gang_(units / gangs_),
        longer_(units - units_of_gang_ * gangs_) {}

  // The gangs that have a share.
  TILEWISE_INLINE std::int32_t gangs() const { return gangs_; }
  // The first unit of a gang; that of gang gangs() is the end.
  TILEWISE_INLINE std::int32_t begin(std::int32_t gang) const {
    return gang * units_of_gang_ + math::min(gang, longer_);
  }
  // The gang whose share contains a unit.
  TILEWISE_INLINE std::int32_t gang_of(std::int32_t unit) const {
    const std::int32_t inside = unit - longer_ * (units_of_gang_ + 1);
    return inside < 0 ? unit / (units_of_gang_ + 1) : longer_ + inside / units_of_gang_;
  }

 private:
  std::int32_t gangs_;
  std::int32_t units_of_gang_;
  std::int32_t longer_;
};

// Whether any segment is cut into parts, where all sequences have the same lengths. units: of all.
TILEWISE_INLINE bool cuts_segments(const Parameters& parameters, std::int32_t units) {
  if (parameters.fixed_parts || parameters.segment_units == 1) return parameters.segment_units > 1;
  const Shares shares(parameters, units);
  return units % (std::int64_t{shares.gangs()} * parameters.segment_units) != 0;
}

// The parts of a segment of more than one. The states of a part lie in slot (part's number, member
// of the gang). Without fixed parts a gang has at most two that are not whole segments: it begins
// with the rest of one segment, 2 n, and ends with the beginning of another, 2 n + 1.
struct Parts {
  std::int32_t first;
  std::int32_t second;
  std::int32_t step;  // from the second one on
  std::int32_t count;

  TILEWISE_INLINE std::int32_t number(std::int32_t part) const {
    return part == 0 ? first : second + (part - 1) * step;
  }
};

// The number of the part that begins with a unit of a segment.
TILEWISE_INLINE std::int32_t part_number(const Parameters& parameters, const Segment& segment,
                                         std::int32_t begin, std::int32_t gang) {
  if (parameters.fixed_parts) return begin;
  return 2 * gang + (begin == segment.first_unit ? 1 : 0);
}

TILEWISE_INLINE Parts parts_of(const Parameters& parameters, const Shares& shares,
                               const Segment& segment) {
  const std::int32_t first = segment.first_unit;
  if (parameters.fixed_parts) return {first, first + 1, 1, segment.units};
  const std::int32_t gang = shares.gang_of(first);
  const std::int32_t last = shares.gang_of(segment.end_unit() - 1);
  return {2 * gang + 1, 2 * (gang + 1), 2, last - gang + 1};
}

// The index of a row of a part among the states of all parts.
TILEWISE_INLINE std::int64_t state_index(const Parameters& parameters, std::int32_t number,
                                         std::int32_t member, std::int32_t row) {
  return (std::int64_t{number} * parameters.gang + member) * parameters.q_tile + row;
}

}  // namespace tilewise::cuda::decode
