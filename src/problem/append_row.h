// One row of an append: a head of a new key, of a new value or of a query. Functions of host and
// device; what an entry of a list or a table says is never trusted.
#pragma once

#include "math/integer.h"
#include "math/number.h"
#include "problem/append.h"

namespace tilewise::problem {

// A token: its sequence, its number in that, and its row in the tensor (of batch `tensor_batch`).
struct Token {
  std::int64_t batch;
  std::int64_t number;
  std::int64_t tensor_batch;
  std::int64_t row;
  bool exists;  // it belongs to a sequence
};

// starts: of packed sequences. rows: of a sequence that is not packed.
TILEWISE_INLINE Token token_at(const IndexView& starts, std::int64_t batch, std::int64_t rows,
                               std::int64_t index) {
  if (!starts.present()) return {index / rows, index % rows, index / rows, index % rows, true};
  std::int64_t begin = 0;  // the last sequence that starts at or before the token
  std::int64_t end = batch;
  while (end - begin > 1) {
    const std::int64_t middle = begin + (end - begin) / 2;
    (starts.at(middle) <= index ? begin : end) = middle;
  }
  const bool exists = batch > 0 && starts.at(begin) <= index && index < starts.at(begin + 1);
  return {begin, exists ? index - starts.at(begin) : 0, 0, index, exists};
}

// Where a new key goes: a row of the cache or a page, and a key of that; exists: the cache has it.
struct Place {
  std::int64_t batch;
  std::int64_t row;
  bool exists;
};
TILEWISE_INLINE Place place_of(const Append& task, const Token& token) {
  if (!token.exists) return {0, 0, false};
  const std::int64_t held = task.cache_seqlens.at(token.batch);
  if (held < 0 || held >= task.capacity - token.number) return {0, 0, false};
  const std::int64_t position = held + token.number;
  Place place = {token.batch, position, true};
  if (task.page_table.present()) {
    const PageTable& table = task.page_table;
    place.batch = table.data[token.batch * table.batch + position / table.page_size * table.column];
    place.row = position % table.page_size;
  } else if (task.cache_batch_idx.present()) {
    place.batch = task.cache_batch_idx.at(token.batch);
  }
  place.exists = place.batch >= 0 && place.batch < task.cache_batch;
  return place;
}

// The row of rotary_cos for number `number` of a sequence.
TILEWISE_INLINE std::int64_t position_of(const Append& task, std::int64_t batch,
                                         std::int64_t number) {
  const IndexView& first = task.rotary_seqlens.present() ? task.rotary_seqlens : task.cache_seqlens;
  const std::int64_t begin = math::clamp(first.at(batch), 0, task.positions - 1);
  return math::min(begin + number, task.positions - 1);
}

// x c - y s and x s + y c, each operation rounded, so that compilers make no difference.
TILEWISE_INLINE float product(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

template <class Element>
TILEWISE_INLINE float rotary_number(const Append& task, const View& table, std::int64_t position,
                                    std::int64_t pair) {
  const std::int64_t at = position * table.row + pair * table.column;
  return table.dtype == task.dtype ? math::load<float>(static_cast<const Element*>(table.data)[at])
                                   : static_cast<const float*>(table.data)[at];
}

// Copies a row, and rotates its first pairs if `position` is not negative. Lane `lane` of `lanes`
// has every lanes-th pair and column, so that a row may be rotated in place.
template <class Element>
TILEWISE_INLINE void move_row(const Append& task, const Element* from, Element* to,
                              std::int64_t width, std::int64_t position, int lane, int lanes) {
  const std::int64_t pairs = position < 0 ? 0 : task.pairs;
  for (std::int64_t pair = lane; pair < pairs; pair += lanes) {
    const std::int64_t i = task.interleaved ? 2 * pair : pair;
    const std::int64_t j = task.interleaved ? 2 * pair + 1 : pair + pairs;
    const float x = math::load<float>(from[i]);
    const float y = math::load<float>(from[j]);
    const float c = rotary_number<Element>(task, task.rotary_cos, position, pair);
    const float s = rotary_number<Element>(task, task.rotary_sin, position, pair);
    math::store(product(x, c) - product(y, s), &to[i]);
    math::store(product(x, s) + product(y, c), &to[j]);
  }
  for (std::int64_t column = 2 * pairs + lane; column < width; column += lanes)
    to[column] = from[column];
}

template <class Element>
TILEWISE_INLINE Element* row_at(const View& view, std::int64_t batch, std::int64_t head,
                                std::int64_t row) {
  return static_cast<Element*>(view.data) + view.offset(batch, head, row);
}

// Row `index` of Append::rows(): those of K, then of V, then of q, token after token.
template <class Element>
TILEWISE_INLINE void append_row(const Append& task, std::int64_t index, int lane, int lanes) {
  const std::int64_t new_rows = task.new_tokens() * task.kv_heads;
  if (index >= 2 * new_rows) {
    const std::int64_t row = index - 2 * new_rows;
    const std::int64_t head = row % task.heads;
    const Token token = token_at(task.cu_seqlens_q, task.batch, task.q_rows, row / task.heads);
    const std::int64_t number = task.q_at_end ? 0 : token.number;
    const std::int64_t position = token.exists ? position_of(task, token.batch, number) : -1;
    move_row(task, row_at<const Element>(task.q, token.tensor_batch, head, token.row),
             row_at<Element>(task.q_rotated, token.tensor_batch, head, token.row), task.head_dim,
             position, lane, lanes);
    return;
  }
  const bool is_k = index < new_rows;
  const std::int64_t row = is_k ? index : index - new_rows;
  const std::int64_t head = row % task.kv_heads;
  const Token token = token_at(task.cu_seqlens_k, task.batch, task.new_rows, row / task.kv_heads);
  const Place place = place_of(task, token);
  if (!place.exists) return;
  const bool rotates = is_k && task.pairs > 0;
  move_row(task, row_at<const Element>(is_k ? task.k : task.v, token.tensor_batch, head, token.row),
           row_at<Element>(is_k ? task.k_cache : task.v_cache, place.batch, head, place.row),
           is_k ? task.head_dim : task.value_dim,
           rotates ? position_of(task, token.batch, token.number) : -1, lane, lanes);
}

}  // namespace tilewise::problem
