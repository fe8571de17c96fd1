// The host's side of the work of every kernel that computes tiles of queries: how much there is, in
// which order it is done, where its parts of the workspace lie.
#pragma once

#include "cuda/host/runtime.h"
#include "cuda/tile/scheduler.h"
#include "problem/arena.h"
#include "problem/checked.h"
#include "problem/problem.h"

namespace tilewise::cuda {

inline constexpr std::int64_t kAlignment = 16;  // bytes, that a thread moves at once

// TILEWISE_OK on compute capability 8.0 and later: machine code for 8.0 and 9.0, PTX from 8.0 on
// (cmake/TilewiseCuda.cmake).
Status check_device(const problem::Problem& problem);

// Which kernel takes a problem may depend on its longest sequence, and with the kernel the order of
// a row's sums. Not in a packed batch whose rows are to have the same bits whatever is beside them.
inline bool may_ask_for_longest(const problem::Problem& problem) {
  return !problem.batch_invariant || !(problem.q_packed || problem.k_packed);
}

// Queries see nothing behind some diagonal: those near a sequence's beginning see fewer keys than
// others.
bool has_diagonal(const problem::Problem& problem);

// At most so many tiles of queries: a packed sequence may end within one.
problem::Checked max_tiles(const problem::Problem& problem, std::int64_t q_tile);

// The order of the tiles of dense queries. Under a diagonal the longest first, within heads of
// which what is seen of K and V at once fits most of L2 beside what passes through.
tile::Schedule schedule_of(const problem::Problem& problem, int q_tile);

// The order of the tiles of packed queries; tile_starts (B + 1).
tile::PackedSchedule packed_schedule_of(const problem::Problem& problem, const void* tile_starts);

// Rows that begin at multiples of 16 bytes and are as long.
bool is_wide(const problem::View& view, std::int64_t columns);

}  // namespace tilewise::cuda
