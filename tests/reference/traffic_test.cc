// Compares the closed forms with the figures of the papers, and with what the code counts.
#include <gtest/gtest.h>

#include <cmath>

#include "problem/validate.h"
#include "reference/traffic.h"
#include "support.h"
#include "verify/instance.h"

namespace tilewise::reference_test {
namespace {

using reference::Algorithm;
using reference::AttentionShape;
using reference::kAlgorithms;
using reference::predict;
using reference::Prediction;

constexpr double kMiB = 1024 * 1024;

AttentionShape square(std::int64_t length, std::int64_t head_dim, std::int64_t element_size) {
  AttentionShape shape;
  shape.q_len = shape.k_len = length;
  shape.head_dim = shape.value_dim = head_dim;
  shape.element_size = element_size;
  return shape;
}

const reference::TensorTraffic& row(const Prediction& prediction, const std::string& name) {
  for (const auto& tensor : prediction.rows()) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return prediction.tensors[0];
}

// The problem is N = 4096, D = 128, one head, 2 bytes per element.
TEST(Traffic, StandardAttentionMovesWhatThePaperSays) {
  const Prediction p = predict(Algorithm::kThreePass, Operation::kForward, square(4096, 128, 2),
                               problem::kDefaultSramBytes);
  for (const char* name : {"q", "k", "v"}) {
    EXPECT_EQ(row(p, name).read_bytes, 1 * kMiB);
    EXPECT_EQ(row(p, name).written_bytes, 0);
  }
  for (const char* name : {"scores", "probs"}) {
    EXPECT_EQ(row(p, name).read_bytes, 32 * kMiB);
    EXPECT_EQ(row(p, name).written_bytes, 32 * kMiB);
  }
  EXPECT_EQ(row(p, "out").written_bytes, 1 * kMiB);
  EXPECT_EQ(p.read_bytes(), 67 * kMiB);
  EXPECT_EQ(p.written_bytes(), 65 * kMiB);
  EXPECT_EQ(p.flops, 4.0 * 4096 * 4096 * 128);
  EXPECT_DOUBLE_EQ(p.intensity(), p.flops / (132 * kMiB));
}

// flash1 moves 2 N D elements for K and V, and 3 N D for each of the ceil(N / ceil(M / 4D)) key
// tiles: Theta(N^2 D^2 / M).
TEST(Traffic, Flash1FallsWithTheFastMemory) {
  const double n = 1 << 16, d = 64;
  const AttentionShape shape = square(1 << 16, 64, 2);
  double previous = 0;
  for (std::int64_t elements = 4096; elements <= 4096 * 64; elements *= 4) {
    const Prediction p = predict(Algorithm::kFlash1, Operation::kForward, shape, 2 * elements);
    const double m = static_cast<double>(elements);
    EXPECT_EQ(p.bytes() / 2, 2 * n * d + 3 * std::ceil(n / std::ceil(m / (4 * d))) * n * d);
    const double quadratic = p.bytes() / 2 - 2 * n * d;
    EXPECT_NEAR(quadratic, 12 * n * n * d * d / m, 0.01 * quadratic);
    if (previous > 0) {
      EXPECT_NEAR(previous / quadratic, 4, 0.04);
    }
    previous = quadratic;
  }
}

// flash2 moves 2 N D + 2 ceil(N / Br) N D elements: Q and O once, K and V once per query tile.
TEST(Traffic, Flash2ReadsKeysOncePerQueryTile) {
  for (const std::int64_t n : {4096, 1000}) {
    const Prediction p = predict(Algorithm::kFlash2, Operation::kForward, square(n, 128, 2),
                                 problem::kDefaultSramBytes);
    const std::int64_t tiles = (n + p.tiles.q_rows - 1) / p.tiles.q_rows;
    EXPECT_EQ(p.bytes() / 2, static_cast<double>(2 * n * 128 + 2 * tiles * n * 128));
  }
}

// The table is that of docs/ladder.md, in whole MiB.
TEST(Traffic, TheTableOfTheDocumentationIsRight) {
  const double expected[][2] = {{132, 332}, {12290, 24580}, {68, 114}, {60, 122}, {124}, {124}};
  const double intensities[][2] = {{62.1, 61.7},   {1.0, 0.8}, {120.5, 179.6},
                                   {136.5, 167.9}, {66.1},     {66.1}};
  for (std::size_t i = 0; i < std::size(kAlgorithms); ++i) {
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      if (operation == Operation::kBackward && !reference::has_backward(kAlgorithms[i])) continue;
      const std::size_t column = operation == Operation::kForward ? 0 : 1;
      const Prediction p = predict(kAlgorithms[i], operation, square(4096, 128, 2), 192 * 1024);
      EXPECT_EQ(p.bytes(), expected[i][column] * kMiB);
      EXPECT_NEAR(p.intensity(), intensities[i][column], 0.05);
    }
  }
}

TEST(Traffic, TilesFitTheFastMemory) {
  for (const std::int64_t elements : {1, 100, 4096, 98304, 1 << 20}) {
    for (const std::int64_t d : {1, 40, 64, 128, 256}) {
      const auto flash1 = reference::flash1_tiles(elements, d, d);
      EXPECT_EQ(flash1.k_rows, (elements + 4 * d - 1) / (4 * d));
      EXPECT_EQ(flash1.q_rows, std::min(flash1.k_rows, d));
      const auto flash2 = reference::flash2_tiles(elements, d, d);
      const auto need = [&](std::int64_t rows) { return 4 * rows * d + rows * rows; };
      EXPECT_GE(flash2.q_rows, 1);
      if (flash2.q_rows > 1) {
        EXPECT_LE(need(flash2.q_rows), elements);
      }
      EXPECT_GT(need(flash2.q_rows < 16 ? flash2.q_rows + 1 : flash2.q_rows + 16), elements);
    }
  }
}

// Returns what the rung counts while it runs.
problem::Traffic counted(const Rung& rung, const Case& c, std::int64_t sram_bytes) {
  verify::Instance instance(c);
  problem::Traffic traffic;
  run(*rung.forward, Operation::kForward, instance.request(), {2, sram_bytes, nullptr});
  run(rung.kernel(c.operation), c.operation, instance.request(), {2, sram_bytes, &traffic});
  return traffic;
}

AttentionShape shape_of(const Case& c) {
  AttentionShape shape;
  shape.batch = c.batch;
  shape.q_len = c.q_len;
  shape.k_len = c.k_len;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.value_dim = c.value_dim;
  shape.element_size = problem::dtype_size(c.dtype);
  shape.window_left = c.window_left;
  shape.window_right = c.causal ? 0 : c.window_right;
  shape.top_left = c.alignment == TILEWISE_TOP_LEFT;
  return shape;
}

std::vector<Case> traffic_cases() {
  Case c;
  c.dtype = TILEWISE_BF16;
  c.q_len = c.k_len = 64;
  c.head_dim = c.value_dim = 16;
  std::vector<Case> cases = {c};
  c.q_len = 61, c.k_len = 83, c.value_dim = 24, c.heads = 4, c.kv_heads = 2, c.batch = 2;
  cases.push_back(c);
  c.dtype = TILEWISE_FP32, c.causal = true;
  cases.push_back(c);
  c.q_len = 83, c.k_len = 61;
  cases.push_back(c);
  c.alignment = TILEWISE_TOP_LEFT, c.window_left = 20;
  cases.push_back(c);
  c.causal = false, c.window_right = 3, c.dtype = TILEWISE_FP64;
  cases.push_back(c);
  c.q_len = 5, c.k_len = 90, c.window_left = -1;
  cases.push_back(c);
  c.q_len = 0;
  cases.push_back(c);
  return cases;
}

TEST(Traffic, CountedTrafficEqualsThePrediction) {
  for (Case c : traffic_cases()) {
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      c.operation = operation;
      SCOPED_TRACE(verify::describe(c));
      for (std::size_t i = 0; i < rungs().size(); ++i) {
        ASSERT_STREQ(reference::algorithm_name(kAlgorithms[i]), rungs()[i].name);
        if (operation == Operation::kBackward && !reference::has_backward(kAlgorithms[i])) continue;
        for (const std::int64_t sram : {500, 4096, 20000}) {
          SCOPED_TRACE(rungs()[i].name + std::string(", fast memory of ") + std::to_string(sram));
          const Prediction prediction = predict(kAlgorithms[i], operation, shape_of(c), sram);
          const problem::Traffic traffic = counted(rungs()[i], c, sram);
          EXPECT_EQ(static_cast<double>(traffic.read_bytes), prediction.read_bytes());
          EXPECT_EQ(static_cast<double>(traffic.written_bytes), prediction.written_bytes());
        }
      }
    }
  }
}

TEST(Traffic, TheWorkspaceOfStandardAttentionAloneIsQuadratic) {
  Case c;
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    c.operation = operation;
    c.head_dim = c.value_dim = 64;
    for (const Rung& rung : rungs()) {
      std::int64_t bytes[2];
      for (int i = 0; i < 2; ++i) {
        c.q_len = c.k_len = i == 0 ? 2048 : 8192;
        verify::Instance instance(c);
        problem::Problem problem;
        ASSERT_EQ(problem::make_problem(operation, instance.request(), &problem), TILEWISE_OK);
        bytes[i] = rung.kernel(operation).workspace_bytes(problem, 1);
      }
      const double growth = static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]);
      if (&rung == &rungs()[0]) {
        EXPECT_GT(growth, 14) << rung.name;
      } else {
        EXPECT_LE(growth, 4) << rung.name;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::reference_test
