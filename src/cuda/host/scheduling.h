// The tiles of queries of a problem for the kernels that compute them: how many there are, and in
// which order blocks compute them.
#pragma once

#include "cuda/host/runtime.h"
#include "cuda/tile/scheduler.h"
#include "problem/arena.h"
#include "problem/checked.h"
#include "problem/problem.h"

namespace tilewise::cuda {

inline constexpr std::int64_t kAlignment = 16;  // bytes of the largest load or store of a thread

// TILEWISE_OK on compute capability 8.0 and later: machine code for 8.0 and 9.0, PTX from 8.0 on
// (cmake/TilewiseCuda.cmake).
Status check_device(const problem::Problem& problem);

// The longest sequence may decide which kernel runs, and with the kernel the order of a row's sums.
// In a batch-invariant packed batch it must not: there a row's bits do not depend on the other
// sequences.
inline bool may_ask_for_longest(const problem::Problem& problem) {
  return !problem.batch_invariant || !(problem.q_packed || problem.k_packed);
}

// Whether the mask is causal or a window with a right edge: queries near a sequence's beginning see
// fewer keys than others.
bool has_diagonal(const problem::Problem& problem);

// Whether tiles come from a list (tile/block_mask.h): under slices and boolean masks.
inline bool needs_block_mask(const problem::Problem& problem) {
  return problem.slices.present() || problem.mask.present();
}

// Upper bounds on the number of tiles of queries, and of tiles of keys of the kv heads. A packed
// sequence may end within a tile.
problem::Checked max_tiles(const problem::Problem& problem, std::int64_t q_tile);
problem::Checked max_key_tiles(const problem::Problem& problem, std::int64_t k_tile);

// The order of the tiles of dense queries of one length. Where their keys differ (longest_first),
// the longest come first, within groups of heads whose visible K and V fit most of L2 together
// (head swizzle).
tile::Schedule schedule_of(const problem::Problem& problem, int q_tile, bool longest_first);
inline tile::Schedule schedule_of(const problem::Problem& problem, int q_tile) {
  return schedule_of(problem, q_tile, has_diagonal(problem));
}

// The order of the tiles of keys of the backward pass, whose blocks read Q and dO. Its tiles are
// numbered from the last key on, so that with a diagonal those of the first keys come first.
//
// Blocks of a head that take turns (turns) and start together at the same queries would wait for
// each other. Without a diagonal, head swizzle over as many heads as fill the device lets them
// start one after the other, apart from the first ones of a launch.
tile::Schedule key_schedule_of(const problem::Problem& problem, int k_tile, bool longest_first,
                               bool turns);

// The order of the tiles of queries of different lengths: packed, or cut by seqused_q; tile_starts
// (B + 1).
tile::PackedSchedule packed_schedule_of(const problem::Problem& problem, const void* tile_starts);

// Whether rows begin at multiples of 16 bytes, and their length is a multiple of 16 bytes.
bool is_wide(const problem::View& view, std::int64_t columns);

// Refuses a paged cache, for kernels that read none.
Status check_no_pages(const problem::Problem& problem);

}  // namespace tilewise::cuda
