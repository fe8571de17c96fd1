#include "verify/cases.h"

#include <algorithm>

namespace tilewise::verify {
namespace {

constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16};

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
  Case cancelling = sized(1, 257, 97, 4, 1, 192);  // products far larger than their sums
  cancelling.scale = 1;
  cancelling.storage = Storage::kExpanded;
  cancelling.distribution = Distribution::kEqual;
  cancelling.bias = {true, 4, {false, false, true, false}};
  cancelling.bias_masks = true;
  cases.push_back(cancelling);
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
  // The slice begins a tile of rows before its first row that sees a key.
  Case late = sized(1, 160, 64, 1, 1, 32);
  late.slices = {{36, 151, 23, 40, 1, -1}};
  cases.push_back(late);
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

// Adds cases that are computed as several calls, on parts of their queries and keys.
void add_parts(std::vector<Case>& cases) {
  Case ring = sized(2, 130, 150, 4, 2, 40);
  ring.causal = ring.sink = ring.dlse = true;
  ring.q_cuts = {31, 90};
  ring.k_cuts = {1, 47, 47, 101};  // no multiples of 4, and an empty piece
  ring.dropout_p = 0.3;
  ring.dropout_seed = 99;
  cases.push_back(ring);
  Case window = sized(1, 120, 200, 4, 1, 24);
  window.window_left = 30;
  window.window_right = 9;
  window.alignment = TILEWISE_TOP_LEFT;
  window.alibi = true;
  window.gradients |= kDAlibiSlopes;
  window.q_cuts = {70};
  window.k_cuts = {10, 75, 190};
  cases.push_back(window);
  Case packed = sized(5, 0, 0, 4, 2, 32);
  packed.q_packed = packed.k_packed = packed.causal = true;
  packed.q_lengths = {0, 70, 1, 64, 33};
  packed.k_lengths = {5, 90, 40, 65, 0};
  packed.unowned = 3;
  packed.q_cuts = {40};
  packed.k_cuts = {33, 70};
  packed.dropout_p = 0.1;
  packed.alibi = packed.alibi_per_batch = true;
  cases.push_back(packed);
  Case decoded = sized(3, 3, 1300, 8, 2, 64);
  decoded.causal = decoded.sink = true;
  decoded.used = {1300, 1100, 0};
  decoded.k_cuts = {7, 650, 1100};
  cases.push_back(decoded);
  Case split = sized(1, 50, 2100, 2, 2, 16);
  split.causal = true;
  split.k_cuts = {1050};
  cases.push_back(split);
  Case scored = sized(2, 65, 90, 4, 2, 32);
  scored.bias = {true, 4, {false, true, true, true}};
  scored.mask = {true, 3, {true, false, true, true}};
  scored.softcap = 2.5;
  scored.used_q = {65, 30};
  scored.q_cuts = {20};
  scored.k_cuts = {41};
  cases.push_back(scored);
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

// Adds cases with a score function: alone, between the other options of the score, in decoding, and
// on parts, where it gets positions of the whole.
void add_score_functions(std::vector<Case>& cases) {
  Case causal = sized(2, 75, 133, 4, 2, 40);
  causal.score_function = causal.causal = true;
  causal.used = {133, 90};
  cases.push_back(causal);
  Case all = causal;
  all.bias = {true, 4, {true, true, false, true}};
  all.alibi = true;
  all.gradients |= kDAlibiSlopes;
  all.softcap = 2.5;
  all.dropout_p = 0.2;
  cases.push_back(all);
  Case cut = sized(2, 65, 90, 4, 2, 32);
  cut.score_function = true;
  cut.used_q = {65, 30};
  cut.q_cuts = {20};
  cut.k_cuts = {41};
  cases.push_back(cut);
  Case decoded = sized(2, 3, 1090, 4, 2, 40);
  decoded.score_function = decoded.causal = true;
  cases.push_back(decoded);
  cases.push_back(paged(sized(2, 19, 96, 4, 2, 64), 16));
  cases.back().score_function = true;
}

void add_distributions(std::vector<Case>& cases) {
  for (const Distribution distribution :
       {Distribution::kOutlierElements, Distribution::kEqual, Distribution::kOneHot,
        Distribution::kAlternating, Distribution::kSubnormal, Distribution::kRepeated,
        Distribution::kPositiveV}) {
    Case c = sized(1, 66, 130, 2, 1, 64);
    c.distribution = distribution;
    c.causal = true;
    cases.push_back(c);
  }
  Case single = sized(2, 63, 1, 3, 3, 7);  // dS is the rounding of denormal numbers
  single.distribution = Distribution::kSubnormal;
  cases.push_back(single);
  Case peaked = sized(2, 31, 97, 1, 1, 40);  // probabilities of the sink below the normal numbers
  peaked.distribution = Distribution::kOneHot;
  peaked.sink = true;
  peaked.scale = 1;
  peaked.softcap = 200;
  cases.push_back(peaked);
}

}  // namespace

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

std::vector<Case> check_cases(std::uint64_t seed) {
  std::vector<Case> shapes;
  add_shapes(shapes);
  add_masks(shapes);
  add_score_options(shapes);
  add_layouts(shapes);
  add_decoding(shapes);
  add_parts(shapes);
  add_distributions(shapes);
  add_pages(shapes);
  add_score_functions(shapes);
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
        if (c.is_cut()) widen_outputs(c);
        cases.push_back(c);
      }
    }
  }
  const std::size_t first = cases.size();
  add_fp8(cases);
  for (std::size_t i = first; i < cases.size(); ++i) cases[i].seed = seed + i;
  return cases;
}

}  // namespace tilewise::verify
