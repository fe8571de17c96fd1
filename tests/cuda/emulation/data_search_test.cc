// A random search for the data that cost a kernel the most, in units of work that the emulated
// device counts, beside random normal data of the same problem. It prints what it finds.
//
// TILEWISE_TEST_SEED draws other data, and TILEWISE_DATA_DRAWS more of them than CI has time for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/emulation/slow_path_counts.h"
#include "cuda/emulation/work.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

using Request = tilewise_problem;
using Member = tilewise_tensor Request::*;

// The rows of a tensor that an edit changes.
enum class Rows { kAll, kOne, kFrom, kUpTo, kEvery, kSome };
enum class Change { kTimes, kPlus, kRamp, kIs };

// A change of some of the numbers of a tensor.
struct Edit {
  const char* name;
  Member tensor;
  Rows rows;
  double which;  // the row, the step, or the part of all rows
  bool one_column;
  Change change;
  double by;
};

std::string text_of(const Edit& edit) {
  const char* const rows[] = {"all rows", "row at", "rows from", "rows up to", "every", "a part"};
  const char* const changes[] = {"times", "plus", "plus a ramp to", "is"};
  char text[160];
  std::snprintf(text, sizeof(text), "%s %s %.4g%s: %s %.4g", edit.name,
                rows[static_cast<int>(edit.rows)], edit.which, edit.one_column ? ", column 0" : "",
                changes[static_cast<int>(edit.change)], edit.by);
  return text;
}

bool holds(const Edit& edit, std::int64_t row, std::int64_t count, Random& random) {
  const auto place = static_cast<std::int64_t>(edit.which * static_cast<double>(count));
  switch (edit.rows) {
    case Rows::kAll:
      return true;
    case Rows::kOne:
      return row == place;
    case Rows::kFrom:
      return row >= place;
    case Rows::kUpTo:
      return row < place;
    case Rows::kEvery:
      return row % std::max<std::int64_t>(1, std::llround(1 / edit.which)) == 0;
    case Rows::kSome:
      return random.chance(edit.which);
  }
  return false;
}

double changed(const Edit& edit, double number, double place) {
  switch (edit.change) {
    case Change::kTimes:
      return number * edit.by;
    case Change::kPlus:
      return number + edit.by;
    case Change::kRamp:
      return number + edit.by * place;
    case Change::kIs:
      return edit.by;
  }
  return number;
}

// The place of an element, of `rows` rows. The rows of scales are blocks of keys.
struct Place {
  std::int64_t row;
  std::int64_t column;
  std::int64_t rows;
};

Place place_of(const tilewise_tensor& tensor, std::int64_t number) {
  const RowIndex at = row_index(tensor, TILEWISE_BSHD, number);
  if (tensor.rank == 3) return {at.column, 0, tensor.shape[2]};
  return {at.row, at.column, tensor.shape[1]};
}

// Finite numbers stay finite, and scales positive. (A number of fp8 becomes the largest one.)
double limited(const tilewise_tensor& tensor, double number) {
  const double limit = tensor.dtype == TILEWISE_FP16 ? 65504.0 : 0x1.FEp127;
  if (tensor.rank == 3) return std::clamp(std::abs(number), 0x1p-126, limit);
  return std::clamp(number, -limit, limit);
}

void apply(const Edit& edit, const Request& request, std::uint64_t seed) {
  const tilewise_tensor& tensor = request.*edit.tensor;
  const std::vector<double> numbers = verify::numbers_of(tensor);
  Random random(seed);
  std::int64_t row = -1;
  bool held = false;
  set_elements(tensor, [&](std::int64_t i) {
    const Place at = place_of(tensor, i);
    if (at.row != row) held = holds(edit, at.row, at.rows, random);
    row = at.row;
    const double own = numbers[static_cast<std::size_t>(i)];
    if (!held || (edit.one_column && at.column != 0)) return own;
    const double place = static_cast<double>(at.row) / static_cast<double>(at.rows);
    const double number = changed(edit, own, place);
    return std::isfinite(edit.by) ? limited(tensor, number) : number;
  });
}

double random_number(Change change, Random& random) {
  const double sign = random.pick({1.0, 1.0, -1.0});
  if (change != Change::kTimes) return sign * std::pow(10, 4 * random.uniform() - 1);
  if (random.chance(0.2)) return sign * std::pow(10, 36 + 2 * random.uniform());
  return sign * std::pow(10, random.pick({1.0, 1.0, 3.0, 38.0, -3.0, -40.0}) * random.uniform());
}

struct Search {
  const char* kernel;
  Operation operation;
  std::int32_t dtype;
  std::int64_t queries;  // 0: many
  bool finite;
};

Edit random_edit(const Search& of, Random& random) {
  struct Named {
    const char* name;
    Member tensor;
  };
  std::vector<Named> tensors = {{"q", &Request::q}, {"k", &Request::k}, {"v", &Request::v}};
  if (of.operation == Operation::kBackward) tensors.push_back({"dout", &Request::dout});
  if (problem::is_fp8(of.dtype) && of.finite) {
    tensors.push_back({"k_descale", &Request::k_descale});
    tensors.push_back({"v_descale", &Request::v_descale});
  }
  const auto last = static_cast<std::int64_t>(tensors.size()) - 1;
  const Named& tensor = tensors[static_cast<std::size_t>(random.between(0, last))];
  Edit edit = {tensor.name, tensor.tensor, {}, 0, false, {}, 0};
  edit.rows = random.pick(
      {Rows::kAll, Rows::kAll, Rows::kOne, Rows::kFrom, Rows::kUpTo, Rows::kEvery, Rows::kSome});
  edit.which = edit.rows == Rows::kAll ? 1 : random.uniform();
  if (edit.rows == Rows::kEvery || edit.rows == Rows::kSome) edit.which *= edit.which * edit.which;
  edit.one_column = random.chance(0.25);
  edit.change = random.pick({Change::kTimes, Change::kTimes, Change::kPlus, Change::kRamp});
  edit.by = random_number(edit.change, random);
  if (!of.finite && random.chance(0.6)) {
    edit.change = Change::kIs;
    edit.by = random.pick({std::nan(""), HUGE_VAL, -HUGE_VAL});
  }
  return edit;
}

// The queries of a cache of fp8 are bf16.
Case random_problem(const Search& of, Random& random) {
  std::int64_t dim = random.pick<std::int64_t>({64, 64, 128, 128, 256});
  if (of.queries > 0 && of.dtype == TILEWISE_FP32) dim = std::min<std::int64_t>(dim, 128);
  const std::int64_t rows = of.queries > 0 ? of.queries : random.between(65, 300);
  Case c = make_case(of.operation, of.dtype, {1, rows, random.between(100, 500), 2, 1, dim});
  const std::int64_t kind = random.between(0, 3);
  c.causal = kind == 1;
  if (kind == 2) c.window_left = random.between(0, 200);
  if (kind == 3) c.softcap = 50;
  if (problem::is_fp8(of.dtype)) {
    c.q_dtype = TILEWISE_BF16;
    c.descale = verify::Descale::kBlocks;
  }
  c.seed = random.bits();
  return c;
}

struct Cost {
  emulation::Work work;
  std::int64_t slow_paths[cuda::tile::kSlowPaths];
};

Cost cost_of(const char* kernel, const Case& c, const std::vector<Edit>& edits) {
  Instance instance(c);
  for (const Edit& edit : edits) apply(edit, instance.request(), c.seed);
  if (c.operation == Operation::kBackward) give_forward_results(instance);
  emulation::work = {};
  std::ranges::fill(emulation::slow_path_counts, 0);
  const problem::Status status = run_kernel(kernel, c.operation, instance.request());
  EXPECT_EQ(status, TILEWISE_OK) << problem::message() << describe(c);
  Cost cost = {emulation::work, {}};
  std::ranges::copy(emulation::slow_path_counts, cost.slow_paths);
  return cost;
}

double ratio_of(const emulation::Work& own, const emulation::Work& normal) {
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
  };
  return std::max({ratio(own.multiply_adds, normal.multiply_adds),
                   ratio(own.copied_bytes, normal.copied_bytes),
                   ratio(own.exponentials, normal.exponentials)});
}

struct Find {
  double ratio;
  std::string text;
};

int draws() {
  const char* const given = std::getenv("TILEWISE_DATA_DRAWS");
  return given != nullptr ? std::atoi(given) : 6;
}

// Draws problems and data, and returns the costliest first.
std::vector<Find> search(const Search& of) {
  Random random(run_seed());
  std::vector<Find> finds;
  for (int draw = 0; draw < draws(); ++draw) {
    const Case c = random_problem(of, random);
    std::vector<Edit> edits(static_cast<std::size_t>(random.between(1, 3)));
    for (Edit& edit : edits) edit = random_edit(of, random);
    const Cost normal = cost_of(of.kernel, c, {});
    const Cost own = cost_of(of.kernel, c, edits);
    Find find = {ratio_of(own.work, normal.work), describe(c)};
    for (const Edit& edit : edits) find.text += "; " + text_of(edit);
    find.text += "; slow paths";
    for (const std::int64_t count : own.slow_paths) find.text += " " + std::to_string(count);
    finds.push_back(find);
  }
  std::ranges::sort(finds, std::greater<>(), &Find::ratio);
  return finds;
}

bool is_hopper_kernel(const char* kernel) { return std::string(kernel) == "cuda_sm90"; }

// A careful pass of cuda_sm90 computes a tile again and reads its V once more. One in which
// non-finite V may be masked looks at the tiles that an edge cuts besides. All other kernels take a
// second pass at most.
double limit_of(const Search& of) {
  if (!is_hopper_kernel(of.kernel)) return 2.1;
  return of.finite ? 2.6 : 3.1;
}

void expect_bounded(const Search& of) {
  const std::vector<Find> finds = search(of);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, finds.size()); ++i)
    std::printf("%s: %.2f times the work: %s\n", of.kernel, finds[i].ratio, finds[i].text.c_str());
  ASSERT_FALSE(finds.empty());
  EXPECT_LE(finds[0].ratio, limit_of(of)) << of.kernel << ": " << finds[0].text;
}

std::vector<Search> searches(bool finite) {
  constexpr Operation kForward = Operation::kForward;
  constexpr Operation kBackward = Operation::kBackward;
  const char* const given = std::getenv("TILEWISE_TEST_KERNEL");
  if (given != nullptr && is_hopper_kernel(given))
    return {{"cuda_sm90", kForward, TILEWISE_BF16, 0, finite},
            {"cuda_sm90", kBackward, TILEWISE_BF16, 0, finite},
            {"cuda_decode", kForward, TILEWISE_E4M3, 4, finite}};
  return {{"cuda_sm80", kForward, TILEWISE_BF16, 0, finite},
          {"cuda_sm80", kForward, TILEWISE_FP16, 0, finite},
          {"cuda_sm80", kBackward, TILEWISE_BF16, 0, finite},
          {"cuda_decode", kForward, TILEWISE_BF16, 4, finite},
          {"cuda_decode", kForward, TILEWISE_FP32, 4, finite},
          {"cuda_fp32", kForward, TILEWISE_FP32, 0, finite},
          {"cuda_fp32", kBackward, TILEWISE_FP32, 0, finite}};
}

TEST(DataSearch, FiniteDataTakeABoundedShareOfWork) {
  TILEWISE_TRACE_SEED();
  for (const Search& of : searches(true)) expect_bounded(of);
}

TEST(DataSearch, NonFiniteDataTakeABoundedShareOfWork) {
  TILEWISE_TRACE_SEED();
  for (const Search& of : searches(false)) expect_bounded(of);
}

}  // namespace
}  // namespace tilewise::tests
