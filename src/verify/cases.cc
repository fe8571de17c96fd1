#include "verify/cases.h"

#include <algorithm>

namespace tilewise::verify {
namespace {

constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16};

Case sized(std::int64_t batch, std::int64_t q_len, std::int64_t k_len, std::int64_t heads,
           std::int64_t kv_heads, std::int64_t head_dim) {
  Case c;
  c.batch = batch;
  c.q_len = q_len;
  c.k_len = k_len;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.value_dim = head_dim;
  return c;
}

void add_shapes(std::vector<Case>& cases) {
  cases.push_back(sized(1, 130, 130, 2, 2, 128));
  cases.push_back(sized(1, 1, 1000, 8, 2, 64));  // a decode step
  cases.push_back(sized(1, 700, 70, 4, 4, 16));  // many rows: rounding must not shrink them
  cases.push_back(sized(0, 5, 7, 2, 1, 8));
  cases.push_back(sized(2, 0, 7, 2, 1, 8));
  cases.push_back(sized(2, 5, 0, 2, 1, 8));
  Case uneven = sized(2, 33, 49, 3, 1, 40);
  uneven.value_dim = 24;
  uneven.scale = -0.25;
  cases.push_back(uneven);
  Case wide = sized(1, 65, 67, 1, 1, 256);
  wide.scale = 0;
  cases.push_back(wide);
}

void add_masks(std::vector<Case>& cases) {
  Case causal = sized(1, 97, 131, 4, 2, 64);
  causal.causal = true;
  cases.push_back(causal);
  std::swap(causal.q_len, causal.k_len);  // the first rows see no key
  causal.dlse = true;
  cases.push_back(causal);
  Case window = sized(2, 70, 65, 2, 2, 32);
  window.window_left = 17;
  window.window_right = 5;
  window.alignment = TILEWISE_TOP_LEFT;
  cases.push_back(window);
  Case sliced = sized(1, 80, 96, 4, 2, 32);
  sliced.slices = {{0, 40, 0, 96, 1, -1},
                   {10, 60, 30, 90, 3, 0},
                   {60, 80, 0, 50, 2, -1},
                   {20, 80, 64, 96, 0, 3}};
  sliced.slice_heads = true;
  cases.push_back(sliced);
  sliced.slice_heads = false;
  sliced.q_packed = sliced.k_packed = true;
  cases.push_back(sliced);
  Case masked = sized(2, 40, 50, 4, 2, 32);
  masked.mask.present = masked.bias.present = masked.alibi = true;
  masked.mask.full = {true, false, true, true};
  masked.bias.full = {false, true, true, true};
  cases.push_back(masked);
}

void add_score_options(std::vector<Case>& cases) {
  Case biased = sized(2, 40, 50, 4, 2, 32);
  biased.bias = {true, 4, {true, false, false, true}};
  biased.bias_masks = true;
  biased.bias_fp32 = true;
  biased.softcap = 2.5;
  biased.alibi = biased.alibi_per_batch = true;
  biased.causal = true;
  cases.push_back(biased);
  Case sloped = sized(2, 40, 57, 4, 2, 24);
  sloped.alibi = sloped.causal = true;
  sloped.used_q = {40, 21};
  sloped.gradients |= kDAlibiSlopes;
  cases.push_back(sloped);
  sloped.alibi_per_batch = sloped.sink = true;
  sloped.softcap = 2.5;
  sloped.dropout_p = 0.2;
  cases.push_back(sloped);
  Case flat = sized(2, 33, 65, 2, 1, 16);
  flat.bias = {true, 2, {true, true, true, true}};
  flat.mask = {true, 1, {true, true, true, true}};
  cases.push_back(flat);
  Case sunk = sized(1, 66, 129, 4, 2, 64);
  sunk.sink = sunk.dlse = true;
  sunk.window_left = 20;
  cases.push_back(sunk);
  Case dropped = sized(2, 64, 64, 4, 2, 32);
  dropped.dropout_p = 0.2;
  dropped.dropout_seed = 0x123456789abcdef;
  dropped.dropout_offset = 77;
  dropped.causal = dropped.sink = true;
  cases.push_back(dropped);
}

void add_layouts(std::vector<Case>& cases) {
  Case packed = sized(6, 0, 0, 4, 2, 32);
  packed.q_packed = packed.k_packed = packed.causal = packed.wide_indices = true;
  packed.q_lengths = {0, 17, 1, 64, 0, 33};
  packed.k_lengths = {5, 17, 40, 65, 0, 20};
  packed.unowned = 3;
  cases.push_back(packed);
  packed.k_packed = false;  // packed queries with a dense cache
  packed.unowned = 0;
  packed.k_len = 65;
  packed.k_lengths.clear();
  packed.used = {5, 17, 40, 65, 0, 20};
  packed.used_q = {0, 17, 0, 40, 3, 70};  // more than there are: clamped
  packed.alibi = true;
  packed.max_lengths_known = false;
  cases.push_back(packed);
  Case used = sized(4, 70, 90, 4, 2, 32);
  used.causal = used.dlse = true;
  used.used_q = {70, 0, 33, 5};
  used.used = {90, 40, 65, 0};
  cases.push_back(used);
  for (const Storage storage :
       {Storage::kPadded, Storage::kTransposed, Storage::kInterleaved, Storage::kExpanded}) {
    Case stored = sized(2, 63, 63, 4, 2, 40);
    stored.storage = storage;
    stored.causal = true;
    if (storage != Storage::kPadded) stored.layout = TILEWISE_BHSD;
    cases.push_back(stored);
  }
}

// Adds cases of few queries on long caches, for which kernels split the keys and merge the states.
void add_decoding(std::vector<Case>& cases) {
  Case many_rows = sized(1, 8, 1100, 10, 2, 72);  // 40 rows for each kv head
  many_rows.value_dim = 24;
  many_rows.causal = true;
  cases.push_back(many_rows);
  Case narrow = sized(2, 3, 1030, 3, 3, 7);
  narrow.value_dim = 33;
  narrow.window_left = 700;  // begins inside of a split, ends before the last key
  narrow.window_right = 3;
  narrow.alignment = TILEWISE_BOTTOM_RIGHT;
  narrow.storage = Storage::kTransposed;
  cases.push_back(narrow);
  Case optioned = sized(2, 3, 1090, 4, 2, 40);
  optioned.softcap = 2.5;
  optioned.alibi = optioned.bias_masks = true;
  optioned.bias = {true, 4, {false, true, true, true}};
  optioned.mask = {true, 4, {true, false, true, true}};
  cases.push_back(optioned);
  Case used = sized(5, 0, 1600, 6, 2, 8);
  used.q_packed = used.sink = used.causal = true;
  used.q_lengths = {1, 0, 3, 20, 16};
  used.used = {1537, 900, 0, 513, 1600};
  used.unowned = 2;
  cases.push_back(used);
  Case padded = sized(3, 20, 1100, 2, 1, 16);  // one sequence is decoded, two are not
  padded.used_q = {20, 3, 17};
  padded.used = {1100, 1064, 3};
  padded.causal = true;
  cases.push_back(padded);
  Case sliced = sized(1, 12, 1500, 4, 2, 32);
  sliced.slices = {{0, 7, 100, 900, 1, -1}, {3, 12, 600, 1400, 2, 0}, {5, 12, 1020, 1030, 0, 3}};
  sliced.slice_heads = true;
  sliced.dropout_p = 0.3;
  cases.push_back(sliced);
}

Case paged(const Case& rows, std::int64_t page_size) {
  Case c = rows;
  c.page_size = page_size;
  return c;
}

// Adds cases of paged caches: for a forward kernel only.
void add_pages(std::vector<Case>& cases) {
  Case step = sized(3, 1, 1120, 8, 2, 64);  // a decode step
  step.used = {1120, 0, 577};
  cases.push_back(paged(step, 16));
  Case prefill = sized(4, 0, 192, 4, 2, 40);  // chunks of prompts, of different lengths
  prefill.q_packed = prefill.causal = prefill.sink = true;
  prefill.q_lengths = {40, 1, 0, 97};
  prefill.used = {65, 7, 0, 190};
  prefill.layout = TILEWISE_BHSD;
  cases.push_back(paged(prefill, 64));
  Case single = sized(2, 37, 131, 4, 1, 32);  // a page for each key
  single.window_left = 60;
  single.window_right = 3;
  single.storage = Storage::kPadded;
  cases.push_back(paged(single, 1));
  Case odd = sized(2, 5, 1032, 6, 3, 72);  // few queries, pages of three keys
  odd.value_dim = 24;
  odd.used = {1031, 700};
  odd.storage = Storage::kTransposed;
  odd.causal = odd.batch_invariant = true;
  cases.push_back(paged(odd, 3));
  Case large = sized(2, 130, 256, 2, 2, 128);  // one page that is larger than a sequence
  large.used = {200, 131};
  large.softcap = 5;
  cases.push_back(paged(large, 256));
  Case optioned = sized(2, 19, 96, 4, 2, 64);
  optioned.mask.present = optioned.bias.present = optioned.alibi = true;
  optioned.dropout_p = 0.2;
  cases.push_back(paged(optioned, 16));
}

void add_distributions(std::vector<Case>& cases) {
  for (const Distribution distribution :
       {Distribution::kOutlierElements, Distribution::kEqual, Distribution::kOneHot,
        Distribution::kAlternating, Distribution::kSubnormal, Distribution::kRepeated}) {
    Case c = sized(1, 66, 130, 2, 1, 64);
    c.distribution = distribution;
    c.causal = true;
    cases.push_back(c);
  }
}

// ---- random cases ----

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

}  // namespace

std::vector<Case> check_cases(std::uint64_t seed) {
  std::vector<Case> shapes;
  add_shapes(shapes);
  add_masks(shapes);
  add_score_options(shapes);
  add_layouts(shapes);
  add_decoding(shapes);
  add_distributions(shapes);
  add_pages(shapes);
  std::vector<Case> cases;
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    for (const std::int32_t dtype : kDtypes) {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        Case c = shapes[i];
        if (c.page_size > 0 && operation == Operation::kBackward) continue;
        c.operation = operation;
        c.dtype = dtype;
        c.seed = seed + i;
        const bool half = dtype == TILEWISE_BF16 || dtype == TILEWISE_FP16;
        if (half && i % 3 == 0) c.output_dtype = TILEWISE_FP32;
        cases.push_back(c);
      }
    }
  }
  return cases;
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
                   Distribution::kSubnormal, Distribution::kRepeated});
  c.lse = random.chance(0.8);
  c.dlse = random.chance(0.4);
  c.gradients =
      random.chance(0.7) ? unsigned{kAllGradients} : static_cast<unsigned>(random.between(0, 31));
  c.deterministic = random.chance(0.3);
  c.batch_invariant = random.chance(0.3);
  c.seed = random.bits() >> 32;
  return c;
}

}  // namespace tilewise::verify
