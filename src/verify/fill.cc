#include "verify/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::verify {
namespace {

// The place of a row of q, k, v or dout. A packed token outside of all sequences has tokens = 0.
struct Row {
  std::int64_t token;  // from the start of its sequence
  std::int64_t tokens;
  std::int64_t head;
};

// The factor that turns N(0, 1) into numbers below the smallest normal one.
double subnormal_factor(std::int32_t dtype) {
  switch (dtype) {
    case TILEWISE_FP64:
      return 0x1p-1030;
    case TILEWISE_FP16:
      return 0x1p-18;
    default:
      return 0x1p-130;
  }
}

// The largest power of ten with which no normal random number overflows.
double huge_factor(std::int32_t dtype) {
  switch (dtype) {
    case TILEWISE_FP64:
      return 1e300;
    case TILEWISE_FP16:
      return 1e4;
    default:
      return 1e37;
  }
}

// Products of two such numbers are denormal; in fp16 the numbers are.
double tiny_factor(std::int32_t dtype) {
  switch (dtype) {
    case TILEWISE_FP64:
      return 1e-160;
    case TILEWISE_FP16:
      return 1e-6;
    default:
      return 1e-22;
  }
}

// Returns the boundaries of the sequences of a packed side with `tokens` tokens.
std::vector<std::int64_t> boundaries(const tilewise_tensor& list, std::int64_t tokens) {
  if (list.rank == 0) return {0, tokens};
  std::vector<std::int64_t> numbers;
  for_each_element(list, [&](std::int64_t, std::int64_t offset) {
    numbers.push_back(list.dtype == TILEWISE_INT64
                          ? static_cast<const std::int64_t*>(list.data)[offset]
                          : static_cast<const std::int32_t*>(list.data)[offset]);
  });
  return numbers;
}

Row packed_row(const std::vector<std::int64_t>& starts, std::int64_t token, std::int64_t head) {
  const auto next = std::upper_bound(starts.begin(), starts.end(), token);
  if (next == starts.begin() || next == starts.end()) return {token, 0, head};
  return {token - next[-1], next[0] - next[-1], head};
}

// Calls fn(row, offset) for every row of q, k, v or dout in row-major order.
template <class Function>
void for_each_row(const tilewise_problem& request, TensorMember member, Function fn) {
  const tilewise_tensor& tensor = request.*member;
  if (tensor.rank < 3) return;
  tilewise_tensor rows = tensor;  // without the columns
  rows.rank -= 1;
  const std::int64_t first = tensor.shape[tensor.rank - 3];
  const std::int64_t second = tensor.shape[tensor.rank - 2];
  const bool packed = tensor.rank == 3;
  const bool heads_first = !packed && request.layout == TILEWISE_BHSD;
  const bool keys = member == &tilewise_problem::k || member == &tilewise_problem::v;
  const std::vector<std::int64_t> starts =
      packed ? boundaries(keys ? request.cu_seqlens_k : request.cu_seqlens_q, first)
             : std::vector<std::int64_t>();
  for_each_element(rows, [&](std::int64_t i, std::int64_t offset) {
    const std::int64_t outer = i / second % first;
    const std::int64_t inner = i % second;
    if (packed) return fn(packed_row(starts, outer, inner), offset);
    fn(heads_first ? Row{inner, second, outer} : Row{outer, first, inner}, offset);
  });
}

// NaN or infinity for the kinds that bring it; 0 for the others.
double non_finite(Distribution kind) {
  switch (kind) {
    case Distribution::kNanQ:
    case Distribution::kNanK:
    case Distribution::kNanV:
    case Distribution::kNanDout:
      return std::numeric_limits<double>::quiet_NaN();
    case Distribution::kInfQ:
    case Distribution::kInfK:
    case Distribution::kInfV:
    case Distribution::kInfDout:
      return HUGE_VAL;
    default:
      return 0;
  }
}

// Changes the numbers of one tensor as one part of the data says.
class Shaper {
 public:
  Shaper(const DataPart& part, TensorMember member, std::int32_t dtype, std::uint64_t base)
      : kind_(part.kind),
        parameter_(part.parameter),
        member_(member),
        dtype_(dtype),
        base_(base),
        random_(~base) {}

  // Begins a row. Outlier keys are those of all heads, so a token decides alone.
  void begin(const Row& row) {
    row_ = row;
    outlier_ = kind_ == Distribution::kOutliers &&
               Random(base_ + static_cast<std::uint64_t>(row.token) * 977).chance(0.001);
  }

  double operator()(double x, std::int64_t column) {
    if (non_finite(kind_) != 0) {
      return parameter_ > 0 && random_.chance(parameter_) ? non_finite(kind_) : x;
    }
    if (kind_ == Distribution::kOutlierElements)
      return random_.chance(0.001) ? x + 10 * random_.normal() : x;
    if (kind_ == Distribution::kRepeated) return common(column * 4 + row_.token % 4);
    if (member_ == &tilewise_problem::q) return query(x);
    return member_ == &tilewise_problem::k ? key(x, column) : value(x);
  }

 private:
  // A number that several rows share.
  double common(std::int64_t number) const {
    return Random(base_ + static_cast<std::uint64_t>(number)).normal();
  }

  double query(double x) const {
    switch (kind_) {
      case Distribution::kScaled:
        return x * parameter_;
      case Distribution::kTinyQK:
        return x * tiny_factor(dtype_);
      default:
        return std::abs(x);  // so that a row's scores are in the order of the keys
    }
  }

  double key(double x, std::int64_t column) const {
    const double place = static_cast<double>(row_.token);
    const double last = static_cast<double>(std::max<std::int64_t>(row_.tokens - 1, 1));
    switch (kind_) {
      case Distribution::kOutliers:
        return outlier_ ? x * parameter_ : x;
      case Distribution::kRising:
        return parameter_ * place / last;
      case Distribution::kFalling:
        return parameter_ * (1 - place / last);
      case Distribution::kSawtooth:
        return kSawtoothHeight * std::fmod(place, parameter_) / (parameter_ - 1);
      case Distribution::kTinyQK:
        return x * tiny_factor(dtype_);
      case Distribution::kEqual:
        return common(column);
      case Distribution::kOneHot:
        return row_.tokens > 0 && row_.token == row_.tokens / 2 ? 4 : x;
      case Distribution::kOffset:
        return x + parameter_;
      default:
        return 0.1 * x + (row_.token % 2 == 0 ? 3 : -3);  // kAlternating
    }
  }

  double value(double x) const {
    switch (kind_) {
      case Distribution::kScaledV:
        return x * parameter_;
      case Distribution::kHugeV:
        return x * huge_factor(dtype_);
      case Distribution::kSubnormal:
        return x * subnormal_factor(dtype_);
      case Distribution::kZeroV:
        return 0;
      case Distribution::kOffset:
        return x + parameter_;
      default:
        return std::abs(x);  // kPositiveV
    }
  }

  static constexpr double kSawtoothHeight = 40;

  Distribution kind_;
  double parameter_;
  TensorMember member_;
  std::int32_t dtype_;
  std::uint64_t base_;
  Random random_;
  Row row_ = {0, 0, 0};
  bool outlier_ = false;
};

// Writes the one number of each sequence that is not finite. It is written last, because heads may
// share their memory.
void place_one(const DataPart& part, const tilewise_problem& request, TensorMember member) {
  for_each_row(request, member, [&](const Row& row, std::int64_t offset) {
    const bool there = row.head == 0 && row.tokens > 0 && row.token == row.tokens / 3;
    if (there) write_element(request.*member, offset, non_finite(part.kind));
  });
}

// Returns whether -infinity is in this column: in the first quarter, so that whole tiles of keys
// are masked, and in every eighth column.
bool is_masked(std::int64_t column, std::int64_t columns) {
  return 4 * column < columns || column % 8 == 3;
}

}  // namespace

void fill_rows(const Data& data, const tilewise_problem& request, TensorMember member,
               std::uint64_t base, const NormalSource& normal) {
  const tilewise_tensor& tensor = request.*member;
  std::vector<Shaper> shapers;
  for (const DataPart& part : data.parts) {
    if (changes(part, member)) shapers.emplace_back(part, member, tensor.dtype, base);
  }
  const int axis = tensor.rank - 1;
  for_each_row(request, member, [&](const Row& row, std::int64_t offset) {
    for (Shaper& shaper : shapers) shaper.begin(row);
    for (std::int64_t column = 0; column < tensor.shape[axis]; ++column) {
      double x = normal();
      for (Shaper& shaper : shapers) x = shaper(x, column);
      write_element(tensor, offset + column * tensor.strides[axis], x);
    }
  });
  for (const DataPart& part : data.parts) {
    const bool one = non_finite(part.kind) != 0 && part.parameter == 0;
    if (one && changes(part, member)) place_one(part, request, member);
  }
}

void fill_bias(const Data& data, const tilewise_tensor& bias, const NormalSource& normal) {
  const bool masks = changes(data, &tilewise_problem::bias);
  const std::int64_t columns = bias.rank > 0 ? bias.shape[bias.rank - 1] : 1;
  for_each_element(bias, [&](std::int64_t i, std::int64_t offset) {
    const double x = normal();
    write_element(bias, offset, masks && is_masked(i % columns, columns) ? -HUGE_VAL : x);
  });
}

}  // namespace tilewise::verify
