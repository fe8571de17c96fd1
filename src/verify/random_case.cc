#include <algorithm>

#include "verify/cases.h"

namespace tilewise::verify {
namespace {

std::int64_t edge_length(Random& random) {
  const std::int64_t tile = random.pick<std::int64_t>({8, 16, 32, 48, 64, 96, 128});
  return random.pick<std::int64_t>({0, 1, tile - 1, tile, tile + 1, 2 * tile + 1});
}

void pick_sizes(Case& c, Random& random) {
  c.batch = random.pick<std::int64_t>({0, 1, 1, 1, 2, 3});
  c.kv_heads = random.pick<std::int64_t>({1, 1, 2, 3});
  c.heads = c.kv_heads * random.pick<std::int64_t>({1, 1, 2, 3, 4});
  c.head_dim = random.pick<std::int64_t>({1, 7, 16, 32, 40, 64, 64, 72, 80, 96, 128, 192, 256});
  c.value_dim = random.chance(0.75) ? c.head_dim
                                    : random.pick<std::int64_t>({1, 8, 24, 33, 64, 100, 128, 160});
  do {
    c.q_len = edge_length(random);
    c.k_len = edge_length(random);
  } while (c.batch * c.heads * c.q_len * c.k_len * (c.head_dim + c.value_dim) > 40'000'000);
}

void pick_lengths(Case& c, Random& random) {
  c.q_packed = random.chance(0.3);
  c.k_packed = random.chance(c.q_packed ? 0.7 : 0.1);
  const auto fill = [&](bool packed, std::int64_t longest, std::vector<std::int64_t>& lengths) {
    for (std::int64_t b = 0; packed && b < c.batch; ++b) {
      lengths.push_back(random.chance(0.3) ? longest : random.between(0, longest));
    }
  };
  fill(c.q_packed, c.q_len, c.q_lengths);
  fill(c.k_packed, c.k_len, c.k_lengths);
  if (c.q_packed || c.k_packed) {
    c.unowned = random.pick<std::int64_t>({0, 0, 1, 5});
    c.max_lengths_known = random.chance(0.7);
  }
  c.wide_indices = random.chance(0.5);
  if (!random.chance(0.3) || c.batch == 0) return;
  const std::int64_t sides = random.pick<std::int64_t>({1, 1, 2, 3});  // 1: keys, 2: queries
  for (std::int64_t b = 0; b < c.batch; ++b) {
    if (sides & 1) c.used.push_back(random.between(0, score_shape(c)[3]));
    if (sides & 2) c.used_q.push_back(random.between(0, score_shape(c)[2]));
  }
}

// Scatters the keys over pages, in every fourth forward case that can have them.
void pick_pages(Case& c, Random& random) {
  const bool possible = c.operation == Operation::kForward && !c.k_packed && c.k_len > 0;
  if (!possible || !random.chance(0.25)) return;
  c.page_size = random.pick<std::int64_t>({1, 3, 16, 64, 256, 300});
  const std::int64_t longest = c.k_len;
  c.k_len = (c.k_len + c.page_size - 1) / c.page_size * c.page_size;
  if (!c.used.empty() || c.k_len == longest) return;
  for (std::int64_t b = 0; b < c.batch; ++b)
    c.used.push_back(random.chance(0.5) ? longest : random.between(0, longest));
}

void pick_slices(Case& c, Random& random) {
  const bool packed = random.chance(0.3);
  c.q_packed = c.k_packed = packed;
  if (packed) c.batch = 1;
  c.slice_heads = random.chance(0.5);
  const std::int64_t count = random.between(1, 6);
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t q0 = random.between(0, c.q_len);
    const std::int64_t k0 = random.between(0, c.k_len);
    c.slices.push_back({q0, random.between(q0, c.q_len), k0, random.between(k0, c.k_len),
                        random.between(0, 3), random.between(-1, c.heads - 1)});
  }
}

void pick_mask(Case& c, Random& random) {
  c.alignment = random.pick<std::int32_t>({TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT});
  if (random.chance(0.15)) {
    pick_slices(c, random);
    return;
  }
  pick_lengths(c, random);
  c.causal = random.chance(0.4);
  if (random.chance(0.3)) {
    c.window_left = random.pick<std::int64_t>({-1, 0, 1, 16, 100, INT64_MAX});
    c.window_right = random.pick<std::int64_t>({-1, 0, 1, 16, 100, INT64_MAX});
  }
}

ScoreTensor pick_score_tensor(double probability, Random& random) {
  ScoreTensor tensor;
  tensor.present = random.chance(probability);
  tensor.rank = static_cast<int>(random.pick<std::int64_t>({4, 4, 4, 3, 2, 1}));
  for (bool& full : tensor.full) full = random.chance(0.7);
  return tensor;
}

void pick_score_options(Case& c, Random& random) {
  c.mask = pick_score_tensor(0.2, random);
  c.bias = pick_score_tensor(0.25, random);
  c.bias_fp32 = random.chance(0.3);
  c.bias_masks = random.chance(0.3);
  c.alibi = random.chance(0.2) && (c.slices.empty() || !c.q_packed);
  c.alibi_per_batch = random.chance(0.5);
  c.sink = random.chance(0.25);
  if (random.chance(0.25)) c.softcap = random.pick({0.5, 5.0, 30.0, 200.0});
  if (random.chance(0.2)) {
    c.dropout_p = random.pick({0.1, 0.5, 0.9});
    c.dropout_seed = random.bits();
    c.dropout_offset = random.bits() >> 32;
  }
  if (random.chance(0.2)) c.scale = random.pick({0.0, 1.0, -0.3, 0.01});
}

void pick_cuts(Case& c, Random& random) {
  const auto fill = [&](std::int64_t length, std::vector<std::int64_t>& cuts) {
    for (std::int64_t n = random.between(0, 3); n > 0; --n)
      cuts.push_back(random.between(0, length));
    std::sort(cuts.begin(), cuts.end());
  };
  fill(score_shape(c)[2], c.q_cuts);
  fill(score_shape(c)[3], c.k_cuts);
  if (c.is_cut()) widen_outputs(c);
}

}  // namespace

void widen_outputs(Case& c) {
  c.lse = true;
  if (c.dtype == TILEWISE_BF16 || c.dtype == TILEWISE_FP16) {
    c.output_dtype = TILEWISE_FP32;
    c.bias_fp32 = true;
  }
  if (c.dtype == TILEWISE_FP64) c.bias_fp32 = false;  // dBias has the dtype of the bias
}

Case random_case(Operation operation, std::int32_t dtype, Random& random) {
  Case c;
  c.operation = operation;
  c.dtype = dtype;
  const bool half = dtype == TILEWISE_BF16 || dtype == TILEWISE_FP16;
  if (half && random.chance(0.3)) c.output_dtype = TILEWISE_FP32;
  c.layout = random.pick<std::int32_t>({TILEWISE_BSHD, TILEWISE_BHSD});
  pick_sizes(c, random);
  pick_mask(c, random);
  pick_pages(c, random);
  pick_score_options(c, random);
  c.storage = random.pick({Storage::kContiguous, Storage::kContiguous, Storage::kPadded,
                           Storage::kTransposed, Storage::kExpanded, Storage::kInterleaved});
  if (c.page_size > 0 && c.storage == Storage::kExpanded) c.storage = Storage::kContiguous;
  if (c.storage == Storage::kInterleaved) {
    const bool fits = c.page_size == 0 && c.head_dim == c.value_dim && c.q_packed == c.k_packed &&
                      query_tokens(c) == key_tokens(c);
    if (!fits) c.storage = Storage::kContiguous;
  }
  c.distribution =
      random.pick({Distribution::kNormal, Distribution::kNormal, Distribution::kOutlierElements,
                   Distribution::kEqual, Distribution::kOneHot, Distribution::kAlternating,
                   Distribution::kSubnormal, Distribution::kRepeated, Distribution::kPositiveV});
  if (random.chance(0.1)) c.distribution.parts = {{Distribution::kOffset, 4}};
  c.lse = random.chance(0.8);
  c.dlse = random.chance(0.4);
  c.gradients =
      random.chance(0.7) ? unsigned{kAllGradients} : static_cast<unsigned>(random.between(0, 31));
  c.deterministic = random.chance(0.3);
  c.batch_invariant = random.chance(0.3);
  if (c.slices.empty() && c.page_size == 0 && random.chance(0.2)) pick_cuts(c, random);
  c.seed = random.bits() >> 32;
  constexpr double kPhi[] = {0, 3, -6, 60, -1e30};
  c.score_function = c.seed % 8 == 3;
  // Scores would not depend on the inputs. In a window of two keys all rows would have the same two
  // probs, and all draws the same errors of rounding, which may be small by luck.
  if (c.score_function && c.scale == 0.0) c.scale = 1.0;
  if (operation == Operation::kForward && c.seed % 8 == 0) c.phi = {kPhi[c.seed / 8 % 5]};
  return c;
}

}  // namespace tilewise::verify
