// The forward pass: FlashAttention-2 (Dao 2023, algorithm 1) with SIMD lanes = queries. Scores are
// computed as S^T = K Q^T and outputs as O^T = V^T P^T, so that a row's maximum, sum and rescaling
// are lane-wise, K is read in place, and Q and V are packed: Q once per block, transposed.
#pragma once

#include "cpu/forward_parts.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// A multiply-add takes a hundred cycles where an operand or its sum is denormal: values are scaled
// so that none is, and the outputs back. What that makes infinite is computed again as it is, by
// the careful form.
template <class T>
inline constexpr T kValueFactor = sizeof(T) == 8 ? T(0x1p53) : T(0x1p24);

// A tile of keys as the products read it, and the rows of memory to ask for meanwhile.
template <class E>
struct KeyTile {
  Rows<E> k;           // (keys, D)
  PackedColumns<E> v;  // (keys, Dv)
  Ahead ahead[2];      // of the next tile, if there is one: K, V
  bool last;
};

template <class E>
KeyTile<E> load_key_tile(const HeadContext& context, math::KeyRange keys, std::int64_t end,
                         bool careful, const ForwardScratch<E>& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t row = context.sequence.k_start + keys.begin;
  const std::int64_t count = keys.end - keys.begin;
  const std::int64_t batch = context.sequence.batch;
  const NextTile next = next_tile(context, keys.end, end);
  KeyTile<E> tile;
  tile.k = stage_rows<E>({&problem.k, batch, context.kv_head(), row, count, problem.head_dim},
                         scratch.k_stage);
  const RowBlock values = {&problem.v, batch, context.kv_head(), row, count, problem.value_dim};
  std::uint8_t* const odd = careful ? scratch.careful.odd_a : nullptr;
  if constexpr (Operand<E>::kNumbers > 1) {  // its products flush denormals, whatever is done
    tile.v = pack_columns<E>(values, scratch.v_packed, odd);
  } else {
    tile.v =
        pack_scaled_columns<E>(values, careful ? E(1) : kValueFactor<E>, scratch.v_packed, odd);
  }
  tile.ahead[0] = ahead_of(next.k);
  tile.ahead[1] = ahead_of(next.v);
  tile.last = next.k.count == 0;
  return tile;
}

// A panel meets a k tile: scores, mask, softmax, output. Registers that hold no query of the panel
// are left out of the products.
template <class E, int kMost, int kColumns>
void forward_tile(const HeadContext& context, const Frame& frame, TileClass tile_class,
                  KeyTile<E>& tile, std::int64_t panel, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  constexpr int kWidth = kMost * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const std::int64_t depth = operands<E>(problem.head_dim);
  const E* const q_panel = scratch.q_panels + panel * depth * kWidth;
  const std::int64_t skipped = context.sequence.k_start + frame.t0 - tile.v.rows.first;
  const Steps<kColumns> steps =
      find_steps<T, Lanes::kQueries, kColumns>(context, frame, tile_class);
  stepped_product<E, kColumns, kWidth>({tile.k.data + skipped * tile.k.stride, tile.k.stride},
                                       frame.t_count, q_panel, depth, steps, scratch.scores,
                                       &tile.ahead[0]);
  finish_scores<T, Lanes::kQueries, kWidth>(context, frame, tile_class, scratch.mask,
                                            scratch.scores, nullptr);
  if (tile.v.odd != nullptr)
    record_seen<T, kWidth>(frame.t_count, scratch.scores, scratch.careful.seen);
  Vec<T> rescale[kColumns];
  softmax_step<T, kColumns, kWidth>(frame.t_count, ScoreUnits<T>(problem).exponent(),
                                    scratch.scores, scratch.max + panel * kWidth,
                                    scratch.sum + panel * kWidth, rescale);
  if (problem.dropout_p > 0) {
    fill_dropout<T, Lanes::kQueries, kWidth>(
        context, frame, kRoundsWeights<E> ? T(1) : kept_factor<T>(problem), scratch.keep);
    apply_dropout<T, kWidth>(frame, scratch.keep, scratch.scores);
  }
  accumulate<E, kColumns, kWidth>(tile.v, skipped, frame.t_count, steps,
                                  as_operands<E, kColumns, kWidth>(frame.t_count, scratch.scores),
                                  rescale, scratch.careful.seen,
                                  scratch.out_panels + panel * scratch.out_panel, &tile.ahead[1]);
}

// A panel and the part of a range of keys that it may see, from a whole operand on; t_count <= 0:
// nothing.
template <class E, int kWidth>
TILEWISE_INLINE Frame panel_frame(const QueryBlock& block, std::int64_t panel,
                                  math::KeyRange keys) {
  const std::int64_t lane0 = block.first + panel * kWidth;
  const std::int64_t lanes = math::min(kWidth, block.rows - panel * kWidth);
  const math::KeyRange own = keys_of_rows(block.context, lane0, lanes);
  const std::int64_t t0 = whole_operands<E>(math::max(own.begin, keys.begin));
  return {lane0, lanes, t0, math::min(own.end, keys.end) - t0};
}

// All panels of a block meet a k tile.
template <class E, int kColumns>
void visit_key_tile(const QueryBlock& block, math::KeyRange keys, KeyTile<E>& tile,
                    const ForwardScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  std::int64_t visits = 0;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel)
    visits += panel_frame<E, kWidth>(block, panel, keys).t_count > 0 ? 1 : 0;
  visits = math::max(visits, 1);
  tile.ahead[0].share_out(visits * math::ceil_div(keys.end - keys.begin, kProductRows));
  tile.ahead[1].share_out(visits * math::ceil_div(problem.value_dim, kProductRows));
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const Frame frame = panel_frame<E, kWidth>(block, panel, keys);
    if (frame.t_count <= 0) continue;
    const TileClass tile_class = classify(context, Lanes::kQueries, frame);
    if (tile_class == TileClass::kEmpty) continue;
    if (tile.last) {  // the outputs are stored next: their lines must be here for that
      tile.ahead[0] = ahead_of(panel_rows(problem.out, block, panel, kWidth, problem.value_dim));
      tile.ahead[0].share_out(math::ceil_div(frame.t_count, kProductRows));
    }
    with_columns<E, kColumns>(frame.lane_count, [&](auto columns) {
      forward_tile<E, kColumns, decltype(columns)::kCount>(context, frame, tile_class, tile, panel,
                                                           scratch);
    });
  }
}

// Algorithm 1's loop over the k tiles for all panels of a block. Tiles lie on a grid of the
// sequence, so that a row's result does not depend on the block it is in; within a tile a panel
// computes only the keys that it may see.
template <class E, int kColumns>
void visit_keys(const RunContext& run, const QueryBlock& block, bool careful,
                const ForwardScratch<E>& scratch) {
  const Problem& problem = *block.context.problem;
  const math::KeyRange keys = keys_of_block(block);
  const std::int64_t key_bytes = problem.head_dim * problem::dtype_size(problem.k.dtype) +
                                 problem.value_dim * problem::dtype_size(problem.v.dtype);
  for (std::int64_t first = keys.begin / kKeyTile * kKeyTile; first < keys.end; first += kKeyTile) {
    const math::KeyRange range = {whole_operands<E>(math::max(first, keys.begin)),
                                  math::min(first + kKeyTile, keys.end)};
    KeyTile<E> tile = load_key_tile(block.context, range, keys.end, careful, scratch);
    count_traffic(run, (range.end - range.begin) * key_bytes, 0);
    visit_key_tile<E, kColumns>(block, range, tile, scratch);
  }
}

template <class E, int kWidth>
void load_queries(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    pack_panel<E, kWidth>(panel_rows(problem.q, block, panel, kWidth, problem.head_dim),
                          ScoreUnits<SumOf<E>>(problem).packed,
                          scratch.q_panels + panel * operands<E>(problem.head_dim) * kWidth);
    start_state<E, kWidth>(panel, scratch);
    clear_output<E>(panel, scratch);
  }
}

template <class T, int kWidth>
void unscale_outputs(const QueryBlock& block, const ForwardScratch<T>& scratch) {
  const std::int64_t size = block.context.problem->value_dim * kWidth;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    T* const out = scratch.out_panels + panel * scratch.out_panel;
    for (std::int64_t at = 0; at < size; at += Vec<T>::kLanes)
      (Vec<T>::load(out + at) * Vec<T>(T(1) / kValueFactor<T>)).store(out + at);
  }
}

// The states of a block's rows, left in the scratch.
template <class E, int kColumns>
void forward_block(const RunContext& run, const QueryBlock& block,
                   const ForwardScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  for (bool careful = false;; careful = true) {
    load_queries<E, kWidth>(block, scratch);
    visit_keys<E, kColumns>(run, block, careful, scratch);
    if (careful) break;
    if (!block_is_finite<E, kWidth>(block, scratch)) continue;
    if constexpr (Operand<E>::kNumbers == 1) unscale_outputs<E, kWidth>(block, scratch);
    break;
  }
  count_query_traffic(run, block);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
