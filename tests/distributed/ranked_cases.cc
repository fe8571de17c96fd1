// Random cases for the schedules of ranks.
#include "distributed/ranked_run.h"

namespace tilewise::tests {
namespace {

void choose_lengths(verify::Case& c, verify::Random& random) {
  c.batch = random.between(1, 3);
  c.q_packed = random.chance(0.4);
  c.k_packed = c.q_packed && random.chance(0.9);
  c.q_len = random.between(0, 45);
  c.k_len = random.chance(0.5) ? c.q_len : random.between(0, 45);
  if (!c.q_packed) return;
  c.batch = random.between(1, 7);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    c.q_lengths.push_back(random.between(0, 14));
    if (c.k_packed)
      c.k_lengths.push_back(random.chance(0.6) ? c.q_lengths.back() : random.between(0, 14));
  }
  c.unowned = random.chance(0.3) ? random.between(1, 3) : 0;
  c.max_lengths_known = random.chance(0.5);
}

void choose_used(verify::Case& c, verify::Random& random) {
  const bool cuts_q = random.chance(0.25);
  const bool cuts_k = random.chance(0.25);
  for (std::size_t b = 0; b < static_cast<std::size_t>(c.batch); ++b) {
    if (cuts_q) c.used_q.push_back(random.between(0, c.q_packed ? c.q_lengths[b] : c.q_len));
    if (cuts_k) c.used.push_back(random.between(0, c.k_packed ? c.k_lengths[b] : c.k_len));
  }
}

verify::ScoreTensor random_score_tensor(verify::Random& random) {
  verify::ScoreTensor tensor = {true, static_cast<int>(random.between(2, 4)), {}};
  for (bool& full : tensor.full) full = random.chance(0.7);
  return tensor;
}

}  // namespace

verify::Case random_ring_case(std::int32_t dtype, std::int32_t schedule, verify::Random& random) {
  verify::Case c;
  c.dtype = dtype;
  choose_lengths(c, random);
  choose_used(c, random);
  c.kv_heads = random.between(1, 2);
  c.heads = c.kv_heads * random.between(1, 3);
  c.head_dim = random.between(1, 20);
  c.value_dim = random.chance(0.5) ? c.head_dim : random.between(1, 20);
  c.layout = random.pick({TILEWISE_BSHD, TILEWISE_BHSD});
  c.causal = random.chance(0.5);
  c.alignment = random.pick({TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT});
  if (random.chance(0.4)) c.window_left = random.between(0, 20);
  if (random.chance(0.2)) c.window_right = random.between(0, 20);
  if (random.chance(0.2)) c.softcap = 5;
  c.sink = random.chance(0.4);
  c.dlse = random.chance(0.4);
  if (schedule != TILEWISE_SCHEDULE_STRIPED) {
    c.alibi = random.chance(0.3);
    c.alibi_per_batch = random.chance(0.5);
    if (random.chance(0.3)) c.dropout_p = 0.3;
    c.dropout_seed = random.bits();
  }
  c.gradients |= verify::kDAlibiSlopes;
  if (!c.q_packed) {
    if (random.chance(0.3)) c.bias = random_score_tensor(random);
    if (random.chance(0.3)) c.mask = random_score_tensor(random);
    if (!c.bias.full[2]) c.gradients &= ~static_cast<unsigned>(verify::kDBias);
  }
  c.seed = random.bits();
  return c;
}

namespace {

void choose_slices(verify::Case& c, verify::Random& random) {
  c.q_packed = c.k_packed = random.chance(0.5);
  c.q_len = random.between(1, 45);
  c.k_len = random.chance(0.6) ? c.q_len : random.between(1, 45);
  c.slice_heads = random.chance(0.2);
  const std::int64_t count = random.between(1, 6);
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t q_begin = random.between(0, c.q_len);
    const std::int64_t k_begin = random.between(0, c.k_len);
    c.slices.push_back({q_begin, random.between(q_begin, c.q_len), k_begin,
                        random.between(k_begin, c.k_len), random.between(0, 3),
                        c.slice_heads ? random.between(-1, c.heads - 1) : -1});
  }
}

void choose_documents(verify::Case& c, verify::Random& random) {
  c.q_packed = c.k_packed = true;
  c.batch = random.between(1, 7);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    c.q_lengths.push_back(random.between(0, 14));
    c.k_lengths.push_back(random.chance(0.6) ? c.q_lengths.back() : random.between(0, 14));
  }
}

}  // namespace

verify::Case random_balanced_case(std::int32_t dtype, verify::Random& random) {
  verify::Case c;
  c.dtype = dtype;
  c.kv_heads = random.between(1, 2);
  c.heads = c.kv_heads * random.between(1, 3);
  c.head_dim = random.between(1, 20);
  c.value_dim = random.chance(0.5) ? c.head_dim : random.between(1, 20);
  c.layout = random.pick({TILEWISE_BSHD, TILEWISE_BHSD});
  if (random.chance(0.5)) {
    choose_slices(c, random);
  } else {
    c.q_len = random.between(0, 45);
    c.k_len = random.chance(0.5) ? c.q_len : random.between(0, 45);
    if (random.chance(0.5)) choose_documents(c, random);
    c.causal = random.chance(0.5);
    c.alignment = random.pick({TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT});
    if (random.chance(0.4)) c.window_left = random.between(0, 20);
    if (!c.causal && random.chance(0.4)) c.window_right = random.between(0, 20);
  }
  if (random.chance(0.2)) c.softcap = 5;
  c.sink = random.chance(0.4);
  c.dlse = random.chance(0.4);
  c.seed = random.bits();
  return c;
}

verify::Case random_ranked_case(std::int32_t dtype, std::int32_t schedule, verify::Random& random) {
  return schedule == TILEWISE_SCHEDULE_BALANCED ? random_balanced_case(dtype, random)
                                                : random_ring_case(dtype, schedule, random);
}

}  // namespace tilewise::tests
