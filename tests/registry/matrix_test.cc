// The matrix: every kernel of the registry x every case, judged by the accuracy rule (T01). The
// table of cases covers each option, layout, storage and distribution; random cases combine them.
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

struct Column {
  Operation operation;
  std::int32_t dtype;
};

std::vector<Column> columns() {
  std::vector<Column> all;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) all.push_back({operation, dtype});
  }
  return all;
}

class Matrix : public testing::TestWithParam<Column> {};

INSTANTIATE_TEST_SUITE_P(Registry, Matrix, testing::ValuesIn(columns()), [](const auto& column) {
  return operation_and_dtype(column.param.operation, column.param.dtype);
});

TEST_P(Matrix, EveryKernelPassesTheCaseTable) {
  TILEWISE_TRACE_SEED();
  int count = 0;
  for (const Case& description : verify::check_cases(run_seed())) {
    if (description.operation != GetParam().operation) continue;
    if (description.dtype != GetParam().dtype) continue;
    expect_all_pass(description);
    ++count;
  }
  EXPECT_GE(count, 20);  // an empty table would pass everything
}

TEST_P(Matrix, EveryKernelPassesRandomCases) {
  constexpr int kCases = 40;
  TILEWISE_TRACE_SEED();
  const std::uint64_t column = static_cast<std::uint64_t>(GetParam().dtype) * 2 +
                               static_cast<std::uint64_t>(GetParam().operation);
  Random random(run_seed() * 16 + column);
  for (int i = 0; i < kCases; ++i) {
    expect_all_pass(verify::random_case(GetParam().operation, GetParam().dtype, random));
  }
}

}  // namespace
}  // namespace tilewise::tests
