// The forward pass: FlashAttention-2 (Dao 2023, algorithm 1) with SIMD lanes = queries. Scores are
// computed as S^T = K Q^T and outputs as O^T = V^T P^T, so that a row's maximum, sum and rescaling
// are lane-wise, K and V are read in place, and only Q is packed: once per block, transposed.
#pragma once

#include "cpu/accumulate.h"
#include "cpu/decode.h"
#include "cpu/schedule.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Status;

// Keys of a tile: a tile of scores is 24 KB and stays in the L1, where the product with V reads it
// once for every kProductRows columns of V; K and V tiles of 128 x 128 fp32 are 128 KB of the L2.
inline constexpr std::int64_t kKeyTile = 128;
// Panels of queries that share a pass over the keys: each K and V tile is read from the L2 once per
// panel.
inline constexpr std::int64_t kMostPanels = 8;

template <class T>
struct ForwardScratch {
  T* q_panels;    // (panels, D, kWidth)
  T* out_panels;  // (panels, Dv, kWidth)
  T* max;         // (panels, kWidth)
  T* sum;         // (panels, kWidth)
  T* scores;      // (kKeyTile, kWidth)
  T* keep;        // (kKeyTile, kWidth), with dropout
  T* k_stage;     // (kKeyTile, D)
  T* v_stage;     // (kKeyTile, Dv)
  MaskScratch<T> mask;
  CarefulScratch<T> careful;
  Band* bands;
};

template <class T, int kWidth>
ForwardScratch<T> take_forward_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  ForwardScratch<T> scratch;
  scratch.q_panels = arena.take<T>(panels * problem.head_dim * kWidth);
  scratch.out_panels = arena.take<T>(panels * problem.value_dim * kWidth);
  scratch.max = arena.take<T>(panels * kWidth);
  scratch.sum = arena.take<T>(panels * kWidth);
  scratch.scores = arena.take<T>(kKeyTile * kWidth);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? kKeyTile * kWidth : 0);
  scratch.k_stage = arena.take<T>(kKeyTile * problem.head_dim);
  scratch.v_stage = arena.take<T>(kKeyTile * problem.value_dim);
  scratch.mask.low = arena.take<T>(kWidth);
  scratch.mask.high = arena.take<T>(kWidth);
  scratch.mask.visible = arena.take<std::uint8_t>(kKeyTile * kWidth);
  scratch.careful.rows = arena.take<T>(kKeyTile * problem.value_dim);
  scratch.careful.seen = arena.take<std::uint8_t>(kKeyTile * kWidth);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

// One q block: up to `panels` panels of kWidth rows of one head.
struct QueryBlock {
  HeadContext context;
  std::int64_t first;  // row of the sequence
  std::int64_t rows;
};

// Folds a tile of scores into the state of a panel and turns it into unnormalised probabilities.
// Gives the factor that the panel's output so far must be multiplied by.
template <class T, int kColumns>
TILEWISE_INLINE void softmax_step(std::int64_t keys, math::ExponentUnit<Vec<T>> unit, T* scores,
                                  T* max, T* sum, Vec<T>* rescale) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kWidth = kColumns * kLanes;
  for (int n = 0; n < kColumns; ++n) {
    T* const column = scores + n * kLanes;
    const Vec<T> old_max = Vec<T>::load(max + n * kLanes);
    Vec<T> new_max = old_max;
    for (std::int64_t j = 0; j < keys; ++j)
      new_max = maximum(Vec<T>::load(column + j * kWidth), new_max);
    const Vec<T> anchor = math::anchor(new_max);
    rescale[n] = math::weight(old_max, anchor, unit);
    Vec<T> total(T(0));  // of the tile by itself: short sums lose less
    for (std::int64_t j = 0; j < keys; ++j) {
      const Vec<T> weight = math::weight(Vec<T>::load(column + j * kWidth), anchor, unit);
      weight.store(column + j * kWidth);
      total = total + weight;
    }
    new_max.store(max + n * kLanes);
    multiply_add(Vec<T>::load(sum + n * kLanes), rescale[n], total).store(sum + n * kLanes);
  }
}

template <class T, int kWidth>
void apply_dropout(const Frame& frame, const T* keep, T* weights) {
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    for (std::int64_t lane = 0; lane < frame.lane_count; ++lane)
      weights[t * kWidth + lane] *= keep[t * kWidth + lane];
  }
}

// A panel meets a k tile: scores, mask, softmax, output. k and v start at the frame's first key.
template <class T, int kColumns>
void forward_tile(const HeadContext& context, const Frame& frame, TileClass tile_class, Rows<T> k,
                  Rows<T> v, std::int64_t panel, bool careful, const ForwardScratch<T>& scratch,
                  Ahead* ahead) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const T* const q_panel = scratch.q_panels + panel * problem.head_dim * kWidth;
  product<T, kColumns, Axis::kRows>(k, frame.t_count, q_panel, problem.head_dim, scratch.scores,
                                    nullptr, &ahead[0]);
  finish_scores<T, Lanes::kQueries, kWidth>(context, frame, tile_class, scratch.mask,
                                            scratch.scores, nullptr);
  if (careful) record_seen<T, kWidth>(frame.t_count, scratch.scores, scratch.careful.seen);
  Vec<T> rescale[kColumns];
  softmax_step<T, kColumns>(frame.t_count, ScoreUnits<T>(problem).exponent(), scratch.scores,
                            scratch.max + panel * kWidth, scratch.sum + panel * kWidth, rescale);
  if (problem.dropout_p > 0) {
    fill_dropout<T, Lanes::kQueries, kWidth>(context, frame, scratch.keep);
    apply_dropout<T, kWidth>(frame, scratch.keep, scratch.scores);
  }
  accumulate<T, kColumns>(v, problem.value_dim, frame.t_count, scratch.scores, rescale,
                          careful ? &scratch.careful : nullptr,
                          scratch.out_panels + panel * problem.value_dim * kWidth, &ahead[1]);
}

// The keys that rows [first, first + rows) may see through any band.
TILEWISE_INLINE math::KeyRange keys_of_rows(const HeadContext& context, std::int64_t first,
                                            std::int64_t rows) {
  math::KeyRange range = {context.sequence.k_len, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::tile_keys(context.bands[s], first, first + rows);
    if (of_band.begin >= of_band.end) continue;
    range.begin = math::lesser(range.begin, of_band.begin);
    range.end = math::greater(range.end, of_band.end);
  }
  return {math::greater(range.begin, 0), math::lesser(range.end, context.sequence.k_len)};
}

// Algorithm 1's loop over the k tiles for all panels of a block. Tiles lie on a grid of the
// sequence, so that a row's result does not depend on the block it is in; within a tile a panel
// computes only the keys that it may see.
template <class T, int kColumns>
void visit_keys(const RunContext& run, const QueryBlock& block, bool careful,
                const ForwardScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const math::KeyRange keys = keys_of_rows(context, block.first, block.rows);
  const std::int64_t key_bytes = problem.head_dim * problem::dtype_size(problem.k.dtype) +
                                 problem.value_dim * problem::dtype_size(problem.v.dtype);
  for (std::int64_t tile = keys.begin / kKeyTile * kKeyTile; tile < keys.end; tile += kKeyTile) {
    const std::int64_t first = math::greater(tile, keys.begin);
    const std::int64_t count = math::lesser(tile + kKeyTile, keys.end) - first;
    const std::int64_t row = context.sequence.k_start + first;
    const Rows<T> k = stage_rows<T>(
        {&problem.k, context.sequence.batch, context.kv_head(), row, count, problem.head_dim},
        scratch.k_stage);
    const Rows<T> v = stage_rows<T>(
        {&problem.v, context.sequence.batch, context.kv_head(), row, count, problem.value_dim},
        scratch.v_stage);
    const std::int64_t next_count = math::clamp(keys.end - first - count, 0, kKeyTile);
    const RowBlock next_k = {&problem.k, context.sequence.batch, context.kv_head(), row + count,
                             next_count, problem.head_dim};
    const RowBlock next_v = {&problem.v, context.sequence.batch, context.kv_head(), row + count,
                             next_count, problem.value_dim};
    Ahead ahead[2] = {ahead_of(next_k), ahead_of(next_v)};
    count_traffic(run, count * key_bytes, 0);
    for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
      const std::int64_t lane0 = block.first + panel * kWidth;
      const std::int64_t lanes = math::lesser(kWidth, block.rows - panel * kWidth);
      const math::KeyRange own = keys_of_rows(context, lane0, lanes);
      const std::int64_t t0 = math::greater(own.begin, first);
      const Frame frame = {lane0, lanes, t0, math::lesser(own.end, first + count) - t0};
      if (frame.t_count <= 0) continue;
      const TileClass tile_class = classify(context, Lanes::kQueries, frame);
      if (tile_class == TileClass::kEmpty) continue;
      forward_tile<T, kColumns>(
          context, frame, tile_class, {k.data + (t0 - first) * k.stride, k.stride},
          {v.data + (t0 - first) * v.stride, v.stride}, panel, careful, scratch, ahead);
    }
  }
}

template <class T, int kWidth>
void load_queries(const QueryBlock& block, const ForwardScratch<T>& scratch) {
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t row = block.first + panel * kWidth;
    const RowBlock rows = {&problem.q,
                           context.sequence.batch,
                           context.head,
                           context.sequence.q_start + row,
                           math::lesser(kWidth, block.first + block.rows - row),
                           problem.head_dim};
    pack_panel<T, kWidth>(rows, ScoreUnits<T>(problem).packed,
                          scratch.q_panels + panel * problem.head_dim * kWidth);
    const math::SoftmaxState<T> empty = math::empty_state<T>();
    for (int lane = 0; lane < kWidth; ++lane) {
      scratch.max[panel * kWidth + lane] = empty.max;
      scratch.sum[panel * kWidth + lane] = empty.sum;
    }
    T* const out = scratch.out_panels + panel * problem.value_dim * kWidth;
    for (std::int64_t i = 0; i < problem.value_dim * kWidth; ++i) out[i] = T(0);
  }
}

// Normalises, joins the sink, stores O and LSE.
template <class T, int kWidth>
void store_outputs(const QueryBlock& block, const ForwardScratch<T>& scratch) {
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const T sink = problem.sink.present()
                     ? static_cast<T>(static_cast<const float*>(
                           problem.sink.data)[problem.sink.offset(0, context.head, 0)])
                     : -math::Limits<T>::kInfinity;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t row = context.sequence.q_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::lesser(kWidth, block.rows - panel * kWidth);
    T scale[kWidth] = {};
    const T natural = ScoreUnits<T>(problem).natural;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const std::int64_t at = panel * kWidth + lane;
      const math::Finalised<T> closed =
          math::finalise(math::SoftmaxState<T>{scratch.max[at] * natural, scratch.sum[at]}, sink);
      scale[lane] = closed.scale;
      if (problem.lse.present()) {
        store_statistic(problem.lse, context.sequence.batch, context.head, row + lane, closed.lse);
      }
    }
    unpack_panel<T, kWidth>(
        {&problem.out, context.sequence.batch, context.head, row, lanes, problem.value_dim}, scale,
        scratch.out_panels + panel * problem.value_dim * kWidth);
  }
}

template <class T, int kWidth>
bool block_is_finite(const QueryBlock& block, const ForwardScratch<T>& scratch) {
  const std::int64_t value_dim = block.context.problem->value_dim;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t lanes = math::lesser(kWidth, block.rows - panel * kWidth);
    if (!all_finite<T, kWidth>(scratch.out_panels + panel * value_dim * kWidth, value_dim, lanes))
      return false;
  }
  return true;
}

template <class T, int kColumns>
void forward_block(const RunContext& run, const QueryBlock& block,
                   const ForwardScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *block.context.problem;
  for (bool careful = false;; careful = true) {
    load_queries<T, kWidth>(block, scratch);
    visit_keys<T, kColumns>(run, block, careful, scratch);
    if (careful || block_is_finite<T, kWidth>(block, scratch)) break;
  }
  store_outputs<T, kWidth>(block, scratch);
  const std::int64_t out_bytes = problem.value_dim * problem::dtype_size(problem.out.dtype);
  const std::int64_t lse_bytes = problem.lse.present() ? problem::dtype_size(problem.lse.dtype) : 0;
  count_traffic(run, block.rows * problem.head_dim * problem::dtype_size(problem.q.dtype),
                block.rows * (out_bytes + lse_bytes));
}

// Fewer panels to a block when there would be too few blocks to go round; no result depends on it.
template <int kWidth>
TILEWISE_INLINE std::int64_t choose_panels(const Problem& problem, std::int64_t concurrency) {
  std::int64_t panels = kMostPanels;
  const std::int64_t panels_in_all =
      problem.batch * problem.heads * divide_up(problem.max_q, kWidth);
  while (panels > 1 && panels_in_all < panels * concurrency * 4) panels /= 2;
  return panels;
}

// Numbers the blocks of the sequences that are not decoded. Returns how many there are for one head.
TILEWISE_INLINE std::int64_t number_forward_blocks(const Problem& problem, const Shared& shared,
                                                   std::int64_t block_rows) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = shared.sequences[b];
    const std::int64_t blocks =
        is_decoded(sequence) ? 0 : divide_up(sequence.q_len, block_rows);
    shared.blocks_before[b + 1] = shared.blocks_before[b] + blocks;
  }
  return shared.blocks_before[problem.batch];
}

template <class T, int kColumns>
std::int64_t forward_workspace(const Problem& problem, std::int64_t concurrency) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  Arena shared(nullptr);
  take_shared(problem, shared);
  take_decode_shared<T>(problem, shared);
  Arena own(nullptr);
  take_forward_scratch<T, kWidth>(problem, choose_panels<kWidth>(problem, concurrency), own);
  take_decode_scratch<T>(problem, own);
  Arena all(nullptr);
  all.take<char>(shared.used());
  std::int64_t workers = 0;
  if (shared.used() < 0 || own.used() < 0 ||
      __builtin_mul_overflow(own.used(), concurrency, &workers))
    return -1;
  all.take<char>(workers);
  return all.used();
}

template <class T, int kColumns>
Status run_forward(const Problem& problem, const RunContext& run) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  Arena arena(run.workspace);
  const Shared shared = take_shared(problem, arena);
  const DecodeShared<T> decode = take_decode_shared<T>(problem, arena);
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.used();
  const std::int64_t panels = choose_panels<kWidth>(problem, run.concurrency);
  Arena measure(nullptr);
  take_forward_scratch<T, kWidth>(problem, panels, measure);
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.sequences);
  problem::fill_unowned_rows(problem, shared.sequences);
  const std::int64_t blocks =
      number_forward_blocks(problem, shared, panels * kWidth) * problem.heads;
  const std::int64_t decode_items = number_decode_items(problem, shared.sequences, decode);
  auto body = [&](std::int64_t worker, std::int64_t number) {
    Arena own(scratch_base + worker * measure.used());
    const ForwardScratch<T> scratch = take_forward_scratch<T, kWidth>(problem, panels, own);
    const DecodeScratch<T> decode_scratch = take_decode_scratch<T>(problem, own);
    if (number >= blocks) {
      return decode_item(problem, run, shared.sequences, decode, number - blocks, decode_scratch);
    }
    const Item item = item_at(problem, shared, problem.heads, Side::kQueries, number);
    QueryBlock block;
    block.context = {&problem, shared.sequences[item.batch], item.head, scratch.bands, 0};
    block.context.band_count =
        problem::sequence_bands(problem, block.context.sequence, item.head, scratch.bands);
    block.first = item.block * panels * kWidth;
    block.rows = math::lesser(panels * kWidth, block.context.sequence.q_len - block.first);
    forward_block<T, kColumns>(run, block, scratch);
  };
  share_items(run, shared.next, blocks + decode_items, body);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
