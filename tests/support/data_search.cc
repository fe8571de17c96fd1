#include "support/data_search.h"

#include <cmath>
#include <cstdio>

#include "verify/random.h"

namespace tilewise::tests {
namespace {

using verify::Case;
using verify::Data;
using verify::Operation;
using verify::Random;

// Appends parts to a name of data: "rising:12+nan-k".
class Name {
 public:
  void add(const char* kind) { text_ += (text_.empty() ? "" : "+") + std::string(kind); }

  // Adds a kind with its parameter, to three digits so that the name stays short.
  void add(const char* kind, double parameter) {
    char text[60];
    std::snprintf(text, sizeof(text), "%s:%.3g", kind, parameter);
    add(text);
  }

  Data data() const {
    std::string error;
    return text_.empty() ? Data() : verify::parse_data(text_, &error).value();
  }

 private:
  std::string text_;
};

// Returns a number whose logarithm is uniform: every order of magnitude is as likely.
double magnitude(double least, double most, Random& random) {
  return least * std::pow(most / least, random.uniform());
}

// The order of a row's scores.
void add_order(Name& name, Random& random) {
  const char* const kind =
      random.pick<const char*>({"", "", "", "rising", "falling", "sawtooth", "alternating",
                                "one-hot", "equal-keys", "repeated"});
  const std::string text = kind;
  if (text.empty()) return;
  if (text == "rising" || text == "falling") return name.add(kind, magnitude(0.1, 1000, random));
  if (text == "sawtooth") return name.add(kind, std::floor(magnitude(2, 300, random)));
  name.add(kind);
}

void add_size(Name& name, std::int32_t dtype, Random& random) {
  if (random.chance(0.4))
    name.add("scaled", magnitude(1e-3, dtype == TILEWISE_FP16 ? 1e3 : 1e6, random));
  if (random.chance(0.3)) {
    const double factor = magnitude(3, 300, random);
    name.add("outliers", random.chance(0.5) ? factor : -factor);
  }
  if (random.chance(0.15)) name.add("outlier-elements");
  if (random.chance(0.15)) name.add("offset", magnitude(0.1, 100, random));
  if (random.chance(0.1)) name.add("tiny-qk");
}

void add_values(Name& name, std::int32_t dtype, Random& random) {
  if (random.chance(0.2)) {
    const bool half = dtype == TILEWISE_FP16;
    name.add("scaled-v", magnitude(half ? 1e-6 : 1e-40, half ? 1e4 : 1e37, random));
  }
  const char* const kind = random.pick<const char*>(
      {"", "", "", "", "", "huge-v", "denormal-v", "zero-v", "positive-v"});
  if (*kind != '\0') name.add(kind);
}

void add_non_finite(Name& name, Operation operation, Random& random) {
  const std::int64_t count = random.chance(0.4) ? random.between(1, 3) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const char* const any =
        random.pick<const char*>({"nan-q", "nan-k", "nan-v", "inf-q", "inf-k", "inf-v"});
    const char* const gradient = random.pick<const char*>({"nan-dout", "inf-dout"});
    const bool of_gradient = operation == Operation::kBackward && random.chance(0.3);
    const char* const kind = of_gradient ? gradient : any;
    if (random.chance(0.4)) {
      name.add(kind);
    } else {
      name.add(kind, magnitude(1e-5, 1, random));  // of 10^5 numbers: from one to all
    }
  }
}

void add_mask(Case& c, Name& name, Random& random) {
  switch (random.between(0, 6)) {
    case 0:
      c.causal = true;
      break;
    case 1:
      c.causal = true;
      c.alignment = TILEWISE_TOP_LEFT;
      break;
    case 2:
      c.window_left = random.between(0, c.k_len);
      c.window_right = random.between(0, c.k_len);
      break;
    case 3:
      c.mask.present = true;
      break;
    case 4:
      c.bias.present = true;
      name.add("bias-columns");
      break;
    case 5:
      for (std::int64_t b = 0; b < c.batch; ++b) c.used.push_back(random.between(1, c.k_len));
      break;
    default:
      break;
  }
}

}  // namespace

Case searched_case(std::uint64_t seed, Operation operation, std::int32_t dtype,
                   const SearchShape& shape) {
  Random random(seed);
  Case c;
  c.operation = operation;
  c.dtype = dtype;
  c.batch = shape.batch;
  c.q_len = shape.q_len;
  c.k_len = shape.k_len;
  c.heads = shape.heads;
  c.kv_heads = shape.kv_heads;
  c.head_dim = c.value_dim = shape.head_dim;
  c.seed = seed;
  Name name;
  add_order(name, random);
  add_size(name, dtype, random);
  add_values(name, dtype, random);
  add_non_finite(name, operation, random);
  add_mask(c, name, random);
  c.distribution = name.data();
  return c;
}

Case with_normal_data(const Case& searched) {
  Case c = searched;
  c.distribution = Data();
  return c;
}

}  // namespace tilewise::tests
