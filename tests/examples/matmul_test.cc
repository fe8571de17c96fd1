// Compares the matrix products of examples/gpt with long double sums, for every instruction set of
// this machine.
#include "matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "random.h"
#include "support/seed.h"

namespace gpt {
namespace {

template <class T>
struct Operand {
  std::vector<T> values;
  Matrix<T> view;
};

// A random matrix whose rows, or columns, are 3 elements further apart than necessary.
template <class T>
Operand<T> make_operand(std::int64_t rows, std::int64_t columns, bool is_transposed,
                        Random& random) {
  const std::int64_t stride = (is_transposed ? rows : columns) + 3;
  Operand<T> operand;
  operand.values.resize(static_cast<std::size_t>((is_transposed ? columns : rows) * stride));
  for (T& value : operand.values) value = static_cast<T>(random.normal());
  operand.view = is_transposed ? Matrix<T>{operand.values.data(), rows, columns, 1, stride}
                               : Matrix<T>{operand.values.data(), rows, columns, stride, 1};
  return operand;
}

template <class T>
Matrix<const T> read_only(const Matrix<T>& m) {
  return {m.data, m.rows, m.columns, m.row_stride, m.column_stride};
}

// Expects that every element is within the error of a sum of K products, and that the gaps between
// rows are untouched.
template <class T>
void expect_product(const Operand<T>& a, const Operand<T>& b, const std::vector<T>& before,
                    const Operand<T>& c, Store store) {
  const Matrix<T>& view = c.view;
  for (std::int64_t i = 0; i < view.rows; ++i) {
    for (std::int64_t j = 0; j < view.row_stride; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * view.row_stride + j);
      if (j >= view.columns) {
        ASSERT_EQ(c.values[at], before[at]) << "row " << i << ", past the last column";
        continue;
      }
      long double sum = store == Store::kAdd ? static_cast<long double>(before[at]) : 0.0L;
      long double magnitude = std::fabs(sum);
      for (std::int64_t k = 0; k < a.view.columns; ++k) {
        const long double product =
            static_cast<long double>(a.view.at(i, k)) * static_cast<long double>(b.view.at(k, j));
        sum += product;
        magnitude += std::fabs(product);
      }
      const long double bound = static_cast<long double>(a.view.columns + 2) *
                                static_cast<long double>(std::numeric_limits<T>::epsilon()) *
                                magnitude;
      ASSERT_LE(std::fabs(static_cast<long double>(c.values[at]) - sum), bound)
          << "row " << i << ", column " << j;
    }
  }
}

template <class T>
void expect_right_products(const TileKernel<T>& kernel, Random& random) {
  const Compute compute(2);
  MatrixProduct<T> product(compute, kernel);
  for (int trial = 0; trial < 40; ++trial) {
    const std::int64_t rows = 1 + random.below(trial % 2 == 0 ? 14 : 120);
    const std::int64_t columns = 1 + random.below(80);
    const std::int64_t depth = 1 + random.below(trial % 3 == 0 ? 300 : 20);
    const bool transpose_a = random.below(2) == 1;
    const bool transpose_b = random.below(2) == 1;
    const Store store = random.below(2) == 1 ? Store::kAdd : Store::kReplace;
    SCOPED_TRACE(testing::Message() << kernel.target << ": " << rows << " x " << columns << " x "
                                    << depth << ", transposed " << transpose_a << transpose_b
                                    << ", add " << (store == Store::kAdd));
    const Operand<T> a = make_operand<T>(rows, depth, transpose_a, random);
    const Operand<T> b = make_operand<T>(depth, columns, transpose_b, random);
    const Operand<T> c = make_operand<T>(rows, columns, false, random);
    const std::vector<T> before = c.values;
    product(read_only(a.view), read_only(b.view), c.view, store);
    expect_product(a, b, before, c, store);
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <class T>
class MatrixProductTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MatrixProductTest, Types);

TYPED_TEST(MatrixProductTest, AgreesWithLongDoubleOnEveryTarget) {
  const std::uint64_t seed = tilewise::tests::run_seed();
  TILEWISE_TRACE_SEED();
  Random random(seed);
  const std::vector<TileKernel<TypeParam>> kernels = tile_kernels<TypeParam>();
  ASSERT_FALSE(kernels.empty());
  for (const TileKernel<TypeParam>& kernel : kernels) {
    expect_right_products(kernel, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gpt
