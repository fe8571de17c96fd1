#include "phi.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "convert.h"
#include "verify/tensor.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;

// A phi serves a split if the sum of e^(score - phi) is from 2^-30 to 2^60 (math/
// unified_maximum.h), -20.8 to 41.6 as an exponent of e. A row's sum over all keys is e^(LSE -
// phi); a split has less of it. The proposal puts the middle of a head's LSEs 10 above phi.
constexpr double kMiddle = 10;
constexpr double kLeast = -16;
constexpr double kMost = 40;

// The LSEs of a head: the smallest and the largest that are finite.
struct Span {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool empty() const { return low > high; }
  double proposal() const { return empty() ? 0 : (low + high) / 2 - kMiddle; }
  bool is_served() const {
    return empty() || (low - proposal() >= kLeast && high - proposal() <= kMost);
  }
};

// lse: (B, H, Sq), or packed (H, T)
std::vector<Span> spans_of_heads(const tilewise_tensor& lse) {
  const int axis = lse.rank == 3 ? 1 : 0;
  const std::int64_t heads = lse.shape[axis];
  std::vector<Span> spans(static_cast<std::size_t>(heads));
  const std::int64_t rows = std::max<std::int64_t>(lse.shape[axis + 1], 1);
  verify::for_each_element(lse, [&](std::int64_t i, std::int64_t offset) {
    const double x = verify::read_element(lse, offset);
    if (!std::isfinite(x)) return;
    Span& span = spans[static_cast<std::size_t>(i / rows % heads)];
    span.low = std::min(span.low, x);
    span.high = std::max(span.high, x);
  });
  return spans;
}

}  // namespace

void add_phi_flag(Flags& flags) {
  flags.add_value("phi", "X", "decode with exponents taken against X (FlashDecoding++)");
}

void add_phi_proposal_flag(Flags& flags) {
  flags.add_switch("propose-phi", "say which phi would serve the scores of these inputs");
}

void read_phi(const Flags& flags, Inputs& inputs) {
  if (!flags.given("phi")) return;
  const std::vector<std::int64_t> one = {1};
  io::Array phi = io::make_array(io::ElementType::f32, one);
  phi.writable_elements<float>()[0] = static_cast<float>(flags.number("phi", 0));
  inputs.arrays["phi"] = phi;
  inputs.arrays["phi_fallbacks"] = io::make_array(io::ElementType::i64, one);
  for (const char* name : {"phi", "phi_fallbacks"})
    inputs.problem.*member_of(name) = tensor_of(name, inputs.arrays.at(name));
}

json phi_report(const Flags& flags, const Inputs& inputs) {
  json report = json::object();
  if (flags.given("phi"))
    report["fallbacks"] = inputs.arrays.at("phi_fallbacks").elements<std::int64_t>()[0];
  if (!flags.given("propose-phi")) return report;
  bool serves = true;
  for (const Span& span : spans_of_heads(inputs.problem.lse)) {
    report["proposal"].push_back(span.proposal());
    serves = serves && span.is_served();
  }
  report["serves"] = serves;
  return report;
}

void print_phi_report(std::FILE* to, const json& report) {
  if (report.contains("fallbacks"))
    fmt::print(to, "{:<9} {} splits fell back to maxima of their own\n", "phi",
               report["fallbacks"].get<std::int64_t>());
  if (!report.contains("proposal")) return;
  std::string numbers;
  for (const json& phi : report["proposal"])
    numbers += fmt::format("{}{:.3g}", numbers.empty() ? "" : ",", phi.get<double>());
  fmt::print(to, "{:<9} {} for the heads{}\n", "phi", numbers,
             report["serves"].get<bool>() ? "" : ": does not serve all rows");
}

}  // namespace tilewise::cli
