// Boolean masks that leave out whole blocks: kernels of the CPU do not compute the tiles that such
// a mask hides.
#include <cmath>
#include <vector>

#include "registry/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

// Blocks of `edge` x `edge`: those near the diagonal, and a few others of each head.
bool is_visible(std::int64_t head, std::int64_t row, std::int64_t key, std::int64_t edge) {
  const std::int64_t i = row / edge;
  const std::int64_t j = key / edge;
  return i == j || (i * 7 + j * 3 + head) % 11 == 0;
}

void set_mask(const tilewise_problem& request, std::int64_t edge) {
  const tilewise_tensor& mask = request.mask;
  const std::int64_t rows = mask.shape[2];
  const std::int64_t keys = mask.shape[3];
  verify::for_each_element(mask, [&](std::int64_t i, std::int64_t offset) {
    const std::int64_t head = i / keys / rows % mask.shape[1];
    static_cast<std::uint8_t*>(mask.data)[offset] =
        is_visible(head, i / keys % rows, i % keys, edge) ? 1 : 0;
  });
}

TEST(BlockSparseMasks, AreExact) {
  constexpr std::int64_t kEdges[] = {16, 64, 200};
  int step = 0;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      for (const bool causal : {false, true}) {
        const std::int64_t edge = kEdges[step++ % 3];
        Case c = make_case(operation, dtype, {1, 330, edge == 64 ? 330 : 700, 2, 1, 40});
        c.mask = {true, 4, {false, edge == 64, true, true}};
        c.causal = causal;
        verify::Judge judge(c, [&](const tilewise_problem& r) { set_mask(r, edge); });
        for (const Kernel* kernel : host_kernels(operation)) {
          if (!machine_runs(*kernel, dtype)) continue;
          const verify::Verdict verdict = judge.judge(kernel->name);
          EXPECT_EQ(verdict.result, verify::Verdict::kPassed)
              << kernel->name << ": " << verdict.text << ", blocks of " << edge;
        }
      }
    }
  }
}

// Keys and values that no row sees, and queries that see nothing, may be anything.
TEST(BlockSparseMasks, HideNonFiniteNumbers) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case c = make_case(operation, dtype, {1, 400, 900, 2, 1, 32});
      c.mask = {true, 4, {false, false, true, true}};
      verify::Judge judge(c, [&](const tilewise_problem& request) {
        const std::int64_t keys = request.mask.shape[3];
        verify::for_each_element(request.mask, [&](std::int64_t i, std::int64_t offset) {
          const std::int64_t row = i / keys;
          const std::int64_t key = i % keys;
          static_cast<std::uint8_t*>(request.mask.data)[offset] =
              key % 300 < 100 && row % 300 < 140 ? 1 : 0;
        });
        for (const tilewise_tensor* tensor : {&request.k, &request.v}) {
          const std::vector<double> numbers = verify::numbers_of(*tensor);
          set_elements(*tensor, [&](std::int64_t i) {
            const RowIndex at = row_index(*tensor, TILEWISE_BSHD, i);
            return at.row % 300 == 170 ? NAN : numbers[static_cast<std::size_t>(i)];
          });
        }
      });
      for (const Kernel* kernel : host_kernels(operation)) {
        if (!machine_runs(*kernel, dtype)) continue;
        const verify::Verdict verdict = judge.judge(kernel->name);
        EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << kernel->name << ": " << verdict.text;
      }
    }
  }
}

// A mask of its first keys alone costs reads of these.
TEST(BlockSparseMasks, TilesThatAreHiddenAreNotRead) {
  const auto bytes_read = [](const Kernel& kernel, std::int64_t visible) {
    Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, 600, 4000, 1, 1, 64});
    c.mask = {true, 4, {false, false, false, true}};
    Instance instance(c);
    const tilewise_problem& request = instance.request();
    for (std::int64_t key = 0; key < c.k_len; ++key)
      static_cast<std::uint8_t*>(request.mask.data)[key] = key < visible ? 1 : 0;
    plan::Options options;
    options.kernel = kernel.name;
    plan::Plan plan;
    EXPECT_EQ(plan::make_plan(Operation::kForward, request, options, &plan), TILEWISE_OK);
    const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
    problem::Traffic traffic;
    plan::RunOptions run;
    run.workspace = workspace.data();
    run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
    run.traffic = &traffic;
    EXPECT_EQ(plan::run_plan(plan, request, run), TILEWISE_OK) << problem::message();
    return traffic.read_bytes;
  };
  int measured = 0;
  for (const char* const name : {"cpu_avx512", "cpu_avx2", "cpu_baseline"}) {
    for (const Kernel* kernel : host_kernels(Operation::kForward)) {
      if (kernel->name != std::string(name) || !machine_runs(*kernel, TILEWISE_FP32)) continue;
      EXPECT_LT(4 * bytes_read(*kernel, 300), bytes_read(*kernel, 4000)) << name;
      ++measured;
    }
  }
  EXPECT_GT(measured, 0);
}

}  // namespace
}  // namespace tilewise::tests
