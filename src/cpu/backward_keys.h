// The sweep over keys: a block of keys of one kv head meets every query that sees it, of all query
// heads of the group, in order. It owns its dK and dV and adds its part of dQ.
#pragma once

#include "cpu/query_gradient.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
struct KeyScratch {
  T* k_panels;   // (panels, D, kWidth), with the sign of the scale
  T* v_panels;   // (panels, Dv, kWidth)
  T* dk_panels;  // (panels, D, kWidth)
  T* dv_panels;  // (panels, Dv, kWidth)
  T* key_rows;   // (panels * kWidth, padded D), for dQ
  GradientScratch<T> gradient;
};

template <class T, int kWidth>
KeyScratch<T> take_key_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  KeyScratch<T> scratch;
  scratch.k_panels = arena.take<T>(panels * problem.head_dim * kWidth);
  scratch.v_panels = arena.take<T>(panels * problem.value_dim * kWidth);
  scratch.dk_panels = arena.take<T>(panels * problem.head_dim * kWidth);
  scratch.dv_panels = arena.take<T>(panels * problem.value_dim * kWidth);
  scratch.key_rows =
      arena.take<T>(problem.dq.present() ? panels * kWidth * padded_head_dim<T>(problem) : 0);
  scratch.gradient = take_gradient_scratch<T, kWidth>(problem, arena);
  return scratch;
}

struct KeyBlock {
  const Problem* problem;
  Sequence sequence;
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t keys;
  Turn turn;
};

// What a pass over the queries does. The careful pass repeats dK and dV only: dQ has been added.
template <class T>
struct KeyPass {
  bool careful;
  bool keys_are_finite;  // those of the block
  View delta;
  QueryGradient<T> query_gradient;

  TILEWISE_INLINE bool adds_to_dq() const { return query_gradient.sums != nullptr && !careful; }
};

template <class T, int kColumns>
void key_tile(const HeadContext& context, const Frame& frame, TileClass tile_class, Rows<T> q,
              Rows<T> dout, std::int64_t panel, const KeyPass<T>& pass,
              const KeyScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const std::int64_t at_d = panel * problem.head_dim * kWidth;
  const std::int64_t at_v = panel * problem.value_dim * kWidth;
  const GradientOperands<T> operands = {q, dout, scratch.k_panels + at_d, scratch.v_panels + at_v};
  const GradientTile<T>& tile = scratch.gradient.tile;
  recompute_tile<T, Lanes::kKeys, kColumns>(context, frame, tile_class, operands,
                                            pass.careful || !pass.keys_are_finite,
                                            scratch.gradient);
  if (problem.softcap > 0) apply_softcap_derivative<T, kWidth>(frame, tile);
  Vec<T> one[kColumns];
  for (int n = 0; n < kColumns; ++n) one[n] = Vec<T>(T(1));
  const CarefulScratch<T>* const guard = pass.careful ? &scratch.gradient.careful : nullptr;
  if (problem.dv.present()) {
    accumulate<T, kColumns>(dout, problem.value_dim, frame.t_count, tile.probs, one, guard,
                            scratch.dv_panels + at_v);
  }
  if (problem.dk.present()) {
    accumulate<T, kColumns>(q, problem.head_dim, frame.t_count, tile.gradients, one, guard,
                            scratch.dk_panels + at_d);
  }
  if (pass.adds_to_dq()) {
    const T* const key_rows = scratch.key_rows + panel * kWidth * pass.query_gradient.row;
    add_query_gradient<T, kColumns>(context, frame, key_rows, pass.keys_are_finite,
                                    scratch.gradient, pass.query_gradient);
  }
}

// The part of a q tile that a panel of keys is seen from: rows outside are masked for all its
// lanes.
template <class T, int kColumns>
void visit_query_tile(const HeadContext& context, const KeyBlock& block, math::KeyRange rows,
                      const KeyPass<T>& pass, const KeyScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const std::int64_t count = rows.end - rows.begin;
  const std::int64_t row = context.sequence.q_start + rows.begin;
  const Rows<T> q = stage_rows<T>(
      {&problem.q, context.sequence.batch, context.head, row, count, problem.head_dim},
      scratch.gradient.stage_a);
  const Rows<T> dout = stage_rows<T>(
      {&problem.dout, context.sequence.batch, context.head, row, count, problem.value_dim},
      scratch.gradient.stage_b);
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t lane0 = block.first + panel * kWidth;
    const std::int64_t lanes = math::lesser(kWidth, block.keys - panel * kWidth);
    const math::KeyRange own = rows_of_keys(context, lane0, lanes);
    const std::int64_t t0 = math::greater(own.begin, rows.begin);
    const Frame frame = {lane0, lanes, t0, math::lesser(own.end, rows.end) - t0};
    if (frame.t_count <= 0) continue;
    const TileClass tile_class = classify(context, Lanes::kKeys, frame);
    if (tile_class == TileClass::kEmpty) continue;
    load_row_statistics(context, pass.delta, frame.t0, frame.t_count, frame.t_count,
                        scratch.gradient);
    const std::int64_t skipped = t0 - rows.begin;
    key_tile<T, kColumns>(context, frame, tile_class, {q.data + skipped * q.stride, q.stride},
                          {dout.data + skipped * dout.stride, dout.stride}, panel, pass, scratch);
  }
}

template <class T, int kColumns>
void visit_queries(const RunContext& run, const KeyBlock& block, const KeyPass<T>& pass,
                   const KeyScratch<T>& scratch) {
  const Problem& problem = *block.problem;
  const std::int64_t bytes =
      row_bytes(problem.q, problem.head_dim) + row_bytes(problem.dout, problem.value_dim);
  const std::int64_t dq_bytes =
      pass.adds_to_dq() ? pass.query_gradient.row * static_cast<std::int64_t>(sizeof(T)) : 0;
  const std::int64_t tiles = divide_up(block.sequence.q_len, kGradientTile);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    HeadContext context = {&problem, block.sequence, block.kv_head * problem.group + g,
                           scratch.gradient.bands, 0};
    context.band_count =
        problem::sequence_bands(problem, block.sequence, context.head, scratch.gradient.bands);
    const math::KeyRange rows = rows_of_keys(context, block.first, block.keys);
    for (std::int64_t tile = rows.begin / kGradientTile * kGradientTile; tile < rows.end;
         tile += kGradientTile) {
      const math::KeyRange own = {math::greater(tile, rows.begin),
                                  math::lesser(tile + kGradientTile, rows.end)};
      const std::int64_t position = g * tiles + tile / kGradientTile;
      if (pass.adds_to_dq()) block.turn.wait(position);
      visit_query_tile<T, kColumns>(context, block, own, pass, scratch);
      if (pass.adds_to_dq()) block.turn.pass(position);
      count_traffic(run, (own.end - own.begin) * (bytes + dq_bytes),
                    (own.end - own.begin) * dq_bytes);
    }
  }
  if (pass.adds_to_dq()) {
    block.turn.wait(problem.group * tiles - 1);
    block.turn.pass(problem.group * tiles - 1);
  }
}

template <class T, int kWidth>
void load_keys(const KeyBlock& block, const KeyScratch<T>& scratch) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::lesser(kWidth, block.keys - panel * kWidth);
    const std::int64_t at_d = panel * problem.head_dim * kWidth;
    const std::int64_t at_v = panel * problem.value_dim * kWidth;
    pack_panel<T, kWidth>(
        {&problem.k, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim},
        ScoreUnits<T>(problem).packed, scratch.k_panels + at_d);
    pack_panel<T, kWidth>(
        {&problem.v, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim}, T(1),
        scratch.v_panels + at_v);
    for (std::int64_t i = 0; i < problem.head_dim * kWidth; ++i) scratch.dk_panels[at_d + i] = T(0);
    for (std::int64_t i = 0; i < problem.value_dim * kWidth; ++i)
      scratch.dv_panels[at_v + i] = T(0);
  }
}

template <class T, int kWidth>
bool key_gradients_are_finite(const KeyBlock& block, const KeyScratch<T>& scratch) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t lanes = math::lesser(kWidth, block.keys - panel * kWidth);
    const T* const dk = scratch.dk_panels + panel * problem.head_dim * kWidth;
    const T* const dv = scratch.dv_panels + panel * problem.value_dim * kWidth;
    if (!all_finite<T, kWidth>(dk, problem.head_dim, lanes) ||
        !all_finite<T, kWidth>(dv, problem.value_dim, lanes)) {
      return false;
    }
  }
  return true;
}

template <class T, int kWidth>
void store_key_gradients(const KeyBlock& block, const KeyScratch<T>& scratch) {
  const Problem& problem = *block.problem;
  T scale[kWidth];
  T one[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) {
    scale[lane] = static_cast<T>(problem.scale);
    one[lane] = T(1);
  }
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::lesser(kWidth, block.keys - panel * kWidth);
    if (problem.dk.present()) {
      unpack_panel<T, kWidth>(
          {&problem.dk, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim}, scale,
          scratch.dk_panels + panel * problem.head_dim * kWidth);
    }
    if (problem.dv.present()) {
      unpack_panel<T, kWidth>(
          {&problem.dv, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim}, one,
          scratch.dv_panels + panel * problem.value_dim * kWidth);
    }
  }
}

// K rows of all panels for dQ. False if one of them is not finite.
template <class T, int kWidth>
bool load_rows_for_dq(const KeyBlock& block, std::int64_t padded, const KeyScratch<T>& scratch) {
  const Problem& problem = *block.problem;
  return load_key_rows<T>({&problem.k, block.sequence.batch, block.kv_head,
                           block.sequence.k_start + block.first, block.keys, problem.head_dim},
                          padded, scratch.key_rows)
      .all_finite;
}

template <class T, int kColumns>
void key_block(const RunContext& run, const KeyBlock& block, KeyPass<T> pass,
               const KeyScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *block.problem;
  if (pass.query_gradient.sums != nullptr) {
    pass.keys_are_finite = load_rows_for_dq<T, kWidth>(block, pass.query_gradient.row, scratch);
  }
  for (;; pass.careful = true) {
    load_keys<T, kWidth>(block, scratch);
    visit_queries<T, kColumns>(run, block, pass, scratch);
    if (pass.careful || key_gradients_are_finite<T, kWidth>(block, scratch)) break;
  }
  store_key_gradients<T, kWidth>(block, scratch);
  count_traffic(run,
                block.keys * (row_bytes(problem.k, problem.head_dim) +
                              row_bytes(problem.v, problem.value_dim)),
                block.keys * (row_bytes(problem.dk, problem.head_dim) +
                              row_bytes(problem.dv, problem.value_dim)));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
