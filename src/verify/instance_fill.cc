// Fills an instance with numbers, according to the distribution of its inputs.
#include <algorithm>
#include <cmath>

#include "verify/instance.h"

namespace tilewise::verify {
namespace {

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

// The position of an element of q, k or v.
struct Position {
  bool queries;
  bool keys;
  std::int64_t token;
  std::int64_t tokens;
  std::int64_t column;
};

// Turns a normal random number x into the element at a position. `base` seeds the numbers that
// several positions share.
double shaped(const Case& description, const Position& position, double x, std::uint64_t base,
              Random& random) {
  const auto common = [&](std::int64_t number) {
    return Random(base + static_cast<std::uint64_t>(number)).normal();
  };
  switch (description.distribution) {
    case Distribution::kNormal:
      return x;
    case Distribution::kOutliers:
      return random.chance(0.001) ? x + 10 * random.normal() : x;
    case Distribution::kEqual:
      return position.keys ? common(position.column) : x;
    case Distribution::kOneHot:
      if (position.queries) return std::abs(x);
      return position.keys && position.token == position.tokens / 2 ? 4 : x;
    case Distribution::kAlternating:
      if (position.queries) return std::abs(x);
      return position.keys ? 0.1 * x + (position.token % 2 == 0 ? 3 : -3) : x;
    case Distribution::kSubnormal:
      return position.queries || position.keys ? x : x * subnormal_factor(description.dtype);
    case Distribution::kRepeated:
      return common(position.column * 4 + position.token % 4);
  }
  return x;
}

}  // namespace

void Instance::fill(const tilewise_tensor& tensor, Random& random) {
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    write_element(tensor, offset, random.normal());
  });
}

// Fills q, k or v; `keys` is true for k.
void Instance::fill_rows(const tilewise_tensor& tensor, Random& random, bool keys) {
  const std::int64_t width = tensor.shape[tensor.rank - 1];
  const bool heads_first = tensor.rank == 4 && case_.layout == TILEWISE_BHSD;
  const int token_axis = tensor.rank == 3 ? 0 : (heads_first ? 2 : 1);
  const std::int64_t after = heads_first ? 1 : tensor.shape[token_axis + 1];
  const std::int64_t tokens = tensor.shape[token_axis];
  const bool queries = tensor.data == request_.q.data;
  const std::uint64_t base = random.bits();
  for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    const Position position = {queries, keys, i / (width * after) % tokens, tokens, i % width};
    write_element(tensor, offset, shaped(case_, position, random.normal(), base, random));
  });
}

void Instance::fill_inputs() {
  Random random(case_.seed);
  fill_rows(request_.q, random, false);
  fill_rows(request_.k, random, true);
  fill_rows(request_.v, random, false);
  fill(request_.dout, random);
  fill(request_.dlse, random);
  fill(request_.sink, random);
  for_each_element(request_.bias, [&](std::int64_t, std::int64_t offset) {
    const double x = random.normal();
    const bool masks = case_.bias_masks && random.chance(0.1);
    write_element(request_.bias, offset, masks ? -HUGE_VAL : x);
  });
  for_each_element(request_.mask, [&](std::int64_t, std::int64_t offset) {
    static_cast<std::uint8_t*>(request_.mask.data)[offset] = random.chance(0.75) ? 1 : 0;
  });
  // The slopes are close to the paper's. The paper's own would be the same in every draw: where
  // nothing else distinguishes keys, the probabilities would be the same too, and so would plain
  // attention's roundings, lucky or not.
  for_each_element(request_.alibi_slopes, [&](std::int64_t i, std::int64_t offset) {
    const double exponent = -8 * static_cast<double>(i % case_.heads + 1);
    write_element(
        request_.alibi_slopes, offset,
        std::exp2(exponent / static_cast<double>(case_.heads)) * (0.7 + 0.3 * random.uniform()));
  });
}

}  // namespace tilewise::verify
