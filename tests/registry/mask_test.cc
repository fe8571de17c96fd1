// Tests which keys a row sees (T10) by its outputs. With q = 0 all visible keys have the same
// probability, and with v = the unit matrix, column j of out is above zero exactly where key j is
// visible. The expectation is computed from the semantics, row by row and key by key.
#include <cmath>
#include <set>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

using verify::Slice;

// A row and a key of one sequence (the whole token axis with packed slices).
struct Pair {
  std::int64_t i;
  std::int64_t j;
};

bool slice_shows(const Slice& slice, Pair at) {
  const auto [q0, q1, k0, k1, kind, head] = slice;
  if (at.i < q0 || at.i >= q1 || at.j < k0 || at.j >= k1) return false;
  const std::int64_t row = at.i - q0;
  const std::int64_t key = at.j - k0;
  const std::int64_t diagonal = (k1 - k0) - (q1 - q0);
  const bool causal = kind == 1 || kind == 3;
  const bool inverse = kind == 2 || kind == 3;
  return (!causal || key <= row + diagonal) && (!inverse || key >= row);
}

// The section "Mask" of the semantics, for head `head` of a sequence with the given lengths.
bool visible(const Case& c, std::int64_t q_len, std::int64_t k_len, std::int64_t head, Pair at) {
  if (at.j >= k_len) return false;
  if (!c.slices.empty()) {
    for (const Slice& slice : c.slices) {
      const bool of_head = !c.slice_heads || slice[5] == -1 || slice[5] == head;
      if (of_head && slice_shows(slice, at)) return true;
    }
    return false;
  }
  const std::int64_t diagonal = c.alignment == TILEWISE_TOP_LEFT ? 0 : k_len - q_len;
  const std::int64_t distance = at.j - at.i - diagonal;  // 0 on the diagonal
  if (c.causal && distance > 0) return false;
  if (c.window_left >= 0 && -distance > c.window_left) return false;
  return c.window_right < 0 || distance <= c.window_right;
}

std::int64_t length_of(const std::vector<std::int64_t>& lengths, std::int64_t rows,
                       std::size_t batch) {
  return lengths.empty() ? rows : lengths[batch];
}

// The visibility of all (row, key) pairs of a sequence and head, in the coordinates of the tensors.
struct Visibility {
  std::set<std::pair<std::int64_t, std::int64_t>> pairs;
};

Visibility expected_visibility(const Case& c, std::int64_t batch, std::int64_t head) {
  const std::size_t b = static_cast<std::size_t>(batch);
  const std::int64_t q_len = length_of(c.q_lengths, c.q_len, b);
  std::int64_t k_len = length_of(c.k_lengths, c.k_len, b);
  if (!c.used.empty()) k_len = c.used[b];
  std::int64_t q_start = c.unowned;
  std::int64_t k_start = c.unowned;
  for (std::size_t before = 0; before < b; ++before) {
    q_start += length_of(c.q_lengths, 0, before);
    k_start += length_of(c.k_lengths, 0, before);
  }
  if (c.q_lengths.empty()) q_start = 0;
  if (c.k_lengths.empty()) k_start = 0;
  Visibility result;
  for (std::int64_t i = 0; i < q_len; ++i) {
    for (std::int64_t j = 0; j < k_len; ++j) {
      if (visible(c, q_len, k_len, head, {i, j})) result.pairs.insert({q_start + i, k_start + j});
    }
  }
  return result;
}

// Returns the row-major index of an element of a BSHD or packed tensor.
std::size_t number_of(const tilewise_tensor& tensor, const RowIndex& at) {
  const bool packed = tensor.rank == 3;
  const std::int64_t rows = tensor.shape[packed ? 0 : 1];
  const std::int64_t heads = tensor.shape[packed ? 1 : 2];
  const std::int64_t width = tensor.shape[packed ? 2 : 3];
  return static_cast<std::size_t>(((at.batch * rows + at.row) * heads + at.head) * width +
                                  at.column);
}

void expect_visibility(const Case& c, const tilewise_problem& request, const char* kernel) {
  const std::vector<double> out = verify::numbers_of(request.out);
  const std::int64_t keys = verify::key_tokens(c);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const Visibility expected = expected_visibility(c, b, h);
      for (std::int64_t i = 0; i < verify::query_tokens(c); ++i) {
        for (std::int64_t j = 0; j < keys; ++j) {
          // Rows of other packed sequences are checked with those sequences.
          const RowIndex at = {request.out.rank == 3 ? 0 : b, i, h, j};
          const bool seen = out[number_of(request.out, at)] > 0;
          const bool mine = expected.pairs.count({i, j}) > 0;
          if (c.q_packed && c.slices.empty() && !mine) continue;
          ASSERT_EQ(seen, mine) << kernel << " b=" << b << " h=" << h << " i=" << i << " j=" << j
                                << ": " << describe(c);
        }
      }
    }
  }
}

// Compares the sum over all sequences: with packed tensors no row sees a key of another sequence.
void expect_pair_count(const Case& c, const tilewise_problem& request, const char* kernel) {
  std::size_t expected = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      expected += expected_visibility(c, b, h).pairs.size();
    }
  }
  std::size_t seen = 0;
  for (const double x : verify::numbers_of(request.out)) seen += x > 0 ? 1 : 0;
  EXPECT_EQ(seen, expected) << kernel << ": " << describe(c);
}

void expect_counts_in_lse(const Case& c, const tilewise_problem& request, const char* kernel) {
  const std::vector<double> lse = verify::numbers_of(request.lse);
  const std::vector<double> out = verify::numbers_of(request.out);
  const std::size_t rows = static_cast<std::size_t>(verify::query_tokens(c));
  const std::size_t heads = static_cast<std::size_t>(c.heads);
  const std::size_t width = static_cast<std::size_t>(c.value_dim);
  for (std::size_t n = 0; n < lse.size(); ++n) {
    const std::size_t row = n % rows;
    const std::size_t head = n / rows % heads;
    const std::size_t batch = n / rows / heads;
    double count = 0;
    for (std::size_t j = 0; j < width; ++j) {
      count += out[((batch * rows + row) * heads + head) * width + j] > 0 ? 1 : 0;
    }
    const double expected = count > 0 ? std::log(count) : -HUGE_VAL;
    if (expected == lse[n]) continue;
    ASSERT_NEAR(lse[n], expected, 1e-5) << kernel << ": " << describe(c);
  }
}

void check_visibility(const Case& c) {
  Instance instance(c);
  set_elements(instance.request().q, [](std::int64_t) { return 0.0; });
  const tilewise_tensor& v = instance.request().v;
  set_elements(v, [&](std::int64_t number) {
    const RowIndex at = row_index(v, TILEWISE_BSHD, number);
    return at.row == at.column ? 1.0 : 0.0;
  });
  for (const Kernel* kernel : kernels_for(instance)) {
    run_for_bits(kernel->name, instance);
    expect_visibility(c, instance.request(), kernel->name);
    expect_pair_count(c, instance.request(), kernel->name);
    expect_counts_in_lse(c, instance.request(), kernel->name);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Returns the number of columns of out, one for each key, rounded up to a multiple of eight for the
// kernels that need it.
std::int64_t columns_for(std::int64_t keys) {
  return std::max<std::int64_t>(1, (keys + 7) / 8) * 8;
}

Case mask_case(std::int64_t q_len, std::int64_t k_len, Random& random) {
  const std::int32_t dtype =
      random.pick<std::int32_t>({TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16});
  Case c = make_case(Operation::kForward, dtype, {2, q_len, k_len, 2, 1, 8});
  c.value_dim = columns_for(k_len);
  return c;
}

void pick_packing(Case& c, Random& random) {
  c.q_packed = c.k_packed = true;
  c.unowned = random.between(0, 2);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    c.q_lengths.push_back(random.between(0, 40));
    c.k_lengths.push_back(random.between(0, 40));
  }
  c.value_dim = columns_for(verify::key_tokens(c));
}

TEST(Masks, CausalAndWindowAgreeWithBruteForce) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 60; ++step) {
    Case c = mask_case(random.between(1, 70), random.between(1, 70), random);
    c.causal = random.chance(0.5);
    c.alignment = random.pick<std::int32_t>({TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT});
    if (random.chance(0.7)) c.window_left = random.between(-1, 40);
    if (random.chance(0.7)) c.window_right = random.between(-1, 40);
    if (step % 3 == 1) pick_packing(c, random);
    if (step % 3 == 2) c.used = {random.between(0, c.k_len), random.between(0, c.k_len)};
    check_visibility(c);
    if (HasFatalFailure()) return;
  }
}

TEST(Masks, SlicesAgreeWithBruteForce) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 1);
  for (int step = 0; step < 60; ++step) {
    Case c = mask_case(random.between(1, 90), random.between(1, 90), random);
    c.q_packed = c.k_packed = step % 3 == 0;
    if (c.q_packed) c.batch = 1;
    c.slice_heads = random.chance(0.5);
    const std::int64_t count = random.between(1, 8);
    for (std::int64_t s = 0; s < count; ++s) {
      const std::int64_t q0 = random.between(0, c.q_len);
      const std::int64_t k0 = random.between(0, c.k_len);
      c.slices.push_back({q0, random.between(q0, c.q_len), k0, random.between(k0, c.k_len),
                          random.between(0, 3), random.between(-1, c.heads - 1)});
    }
    check_visibility(c);
    if (HasFatalFailure()) return;
  }
}

// There are more slices than fit in one leaf of an index, in any order.
TEST(Masks, ManySlicesAgreeWithBruteForce) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 2);
  for (int step = 0; step < 24; ++step) {
    Case c = mask_case(step % 4 == 0 ? random.between(1, 16) : random.between(17, 150),
                       random.between(1, 190), random);
    c.q_packed = c.k_packed = step % 3 == 0;
    if (c.q_packed) c.batch = 1;
    c.slice_heads = random.chance(0.5);
    if (!c.q_packed && random.chance(0.5)) c.used = {random.between(0, c.k_len), c.k_len};
    for (std::int64_t s = random.between(20, 90); s > 0; --s) {
      const std::int64_t q0 = random.between(0, c.q_len);
      const std::int64_t k0 = random.between(0, c.k_len);
      c.slices.push_back({q0, std::min(q0 + random.between(0, 9), c.q_len), k0,
                          std::min(k0 + random.between(0, 20), c.k_len), random.between(0, 3),
                          random.between(-1, c.heads - 1)});
    }
    check_visibility(c);
    if (HasFatalFailure()) return;
  }
}

// A list with a slice for each row gives the bits of the window that it describes.
TEST(Masks, SlicesOfOneRowGiveTheBitsOfTheWindow) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 3);
  constexpr std::int64_t kRows = 600;
  constexpr std::int64_t kLeft = 70;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case window = make_case(operation, dtype, {1, kRows, kRows, 2, 1, 16});
      window.output_dtype = TILEWISE_FP32;  // shows all bits of the sums
      Case sliced = window;
      window.window_left = kLeft;
      window.window_right = 0;
      for (std::int64_t i = 0; i < kRows; ++i)
        sliced.slices.push_back({i, i + 1, std::max<std::int64_t>(i - kLeft, 0), i + 1, 0, -1});
      for (std::size_t i = kRows - 1; i > 0; --i) {
        const std::int64_t other = random.between(0, static_cast<std::int64_t>(i));
        std::swap(sliced.slices[i], sliced.slices[static_cast<std::size_t>(other)]);
      }
      Instance expected(window);
      Instance instance(sliced);
      give_forward_results(expected);
      give_forward_results(instance);
      for (const Kernel* kernel : host_kernels(operation)) {
        if (!machine_runs(*kernel, dtype)) continue;
        EXPECT_EQ(run_for_bits(kernel->name, instance), run_for_bits(kernel->name, expected))
            << kernel->name << ": " << describe(window);
      }
    }
  }
}

// What the other rows of a sequence see changes no bit of a row, in decode steps and in longer
// sequences.
TEST(Masks, SlicesOfOtherRowsChangeNoBitOfARow) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t q_len : {4, 40}) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      for (const bool heads : {false, true}) {
        Case c = make_case(Operation::kForward, dtype, {1, q_len, 3000, 2, 1, 16});
        c.output_dtype = TILEWISE_FP32;
        c.slice_heads = heads;
        const std::vector<Slice> own = {{0, 1, 1030, 1100, 0, -1}, {0, 1, 2500, 2600, 0, -1}};
        const std::vector<std::vector<Slice>> others = {
            {}, {{1, q_len, 0, 3000, 0, -1}}, {{1, 3, 5, 20, 0, 0}, {1, q_len, 1600, 1700, 0, -1}}};
        std::vector<std::vector<std::uint64_t>> expected;
        for (const std::vector<Slice>& more : others) {
          c.slices = own;
          c.slices.insert(c.slices.begin(), more.begin(), more.end());
          Instance instance(c);
          std::vector<std::vector<std::uint64_t>> bits;
          for (const Kernel* kernel : host_kernels(Operation::kForward)) {
            if (!machine_runs(*kernel, dtype)) continue;
            std::vector<std::uint64_t> all = run_for_bits(kernel->name, instance);
            all.resize(static_cast<std::size_t>(c.heads * c.value_dim));  // row 0 of out
            bits.push_back(all);
          }
          if (expected.empty()) expected = bits;
          EXPECT_EQ(bits, expected) << describe(c);
        }
      }
    }
  }
}

// The same mask, described in several ways, gives the same bits.
TEST(Masks, EqualMasksInOtherWordsGiveTheSameBits) {
  TILEWISE_TRACE_SEED();
  struct Saying {
    bool causal;
    std::int64_t left;
    std::int64_t right;
  };
  constexpr std::int64_t kLength = 83;
  constexpr std::int64_t kFar = INT64_MAX;
  const std::vector<std::vector<Saying>> groups = {
      {{true, -1, -1},
       {false, -1, 0},
       {false, kLength, 0},
       {false, kLength - 1, 0},
       {true, kFar, kFar},
       {true, -1, 5}},
      {{false, -1, -1}, {false, kLength, kLength}, {false, kFar, kFar}, {false, kLength - 1, -1}},
      {{true, 16, -1}, {false, 16, 0}}};
  for (const Operation operation : kOperations) {
    for (const auto& group : groups) {
      std::vector<std::vector<std::uint64_t>> expected;
      for (const Saying& saying : group) {
        Case c = make_case(operation, TILEWISE_BF16, {1, kLength, kLength, 4, 2, 32});
        c.causal = saying.causal;
        c.window_left = saying.left;
        c.window_right = saying.right;
        Instance instance(c);
        give_forward_results(instance);
        std::vector<std::vector<std::uint64_t>> bits;
        for (const Kernel* kernel : kernels_for(instance)) {
          bits.push_back(run_for_bits(kernel->name, instance));
        }
        if (expected.empty()) expected = bits;
        EXPECT_EQ(bits, expected) << describe(c);
      }
    }
  }
}

// A slice list that covers a mask once, or twice, gives its results.
TEST(Masks, SlicesThatCoverACausalMaskGiveItsResult) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    Case causal = make_case(operation, TILEWISE_FP64, {2, 60, 85, 2, 1, 16});
    causal.causal = true;
    Case sliced = causal;
    sliced.causal = false;
    sliced.slices = {{0, 60, 0, 85, 1, -1}, {0, 30, 0, 55, 1, -1}, {30, 60, 0, 40, 0, -1}};
    Instance expected(causal);
    Instance instance(sliced);
    give_forward_results(expected);
    give_forward_results(instance);
    for (const Kernel* kernel : runnable_kernels(operation, TILEWISE_FP64)) {
      run_for_bits(kernel->name, expected);
      run_for_bits(kernel->name, instance);
      for (const auto member : {&tilewise_problem::out, &tilewise_problem::dq,
                                &tilewise_problem::dk, &tilewise_problem::dv}) {
        const std::vector<double> want = verify::numbers_of(expected.request().*member);
        const std::vector<double> have = verify::numbers_of(instance.request().*member);
        for (std::size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(have[i], want[i], 1e-13) << kernel->name << ": " << describe(sliced);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
