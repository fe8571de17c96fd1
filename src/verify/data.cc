#include "verify/data.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "problem/tensors.h"

namespace tilewise::verify {
namespace {

constexpr TensorMember kQ = &tilewise_problem::q;
constexpr TensorMember kK = &tilewise_problem::k;
constexpr TensorMember kV = &tilewise_problem::v;
constexpr TensorMember kDout = &tilewise_problem::dout;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // no fallback
constexpr TensorMember kBias = &tilewise_problem::bias;

// What `--data all` stands for.
constexpr const char* kAll[] = {
    "normal",       "scaled:64",  "scaled:3000", "outliers",   "outlier-elements", "rising",
    "falling",      "sawtooth",   "alternating", "equal-keys", "one-hot",          "repeated",
    "huge-v",       "denormal-v", "zero-v",      "positive-v", "offset",           "tiny-qk",
    "bias-columns", "nan-q",      "nan-k",       "nan-v",      "nan-v:0.01",       "nan-dout",
    "inf-q",        "inf-k",      "inf-v",       "inf-dout"};

DataKind plain(Distribution kind, const char* name, std::vector<TensorMember> changed,
               const char* meaning) {
  return {kind, name, nullptr, 0, 0, 0, std::move(changed), meaning};
}

// Numbers of one tensor become NaN or infinite.
DataKind non_finite(Distribution kind, const char* name, TensorMember changed,
                    const char* meaning) {
  return {kind, name, "P", 0, 0, 1, {changed}, meaning};
}

std::vector<DataKind> make_kinds() {
  using D = Distribution;
  return {
      plain(D::kNormal, "normal", {}, "Q, K, V and dO are random normal numbers"),
      {D::kScaled, "scaled", "X", kNone, -1e30, 1e30, {kQ}, "Q times X: scores of deviation X"},
      {D::kScaledV, "scaled-v", "X", kNone, -1e300, 1e300, {kV}, "V times X"},
      {D::kOutliers, "outliers", "X", 30, -1e30, 1e30, {kK}, "1 key in 1000 times X, in all heads"},
      {D::kRising,
       "rising",
       "X",
       40,
       0,
       1e30,
       {kQ, kK},
       "scores rise along the keys; K from 0 to X"},
      {D::kFalling, "falling", "X", 40, 0, 1e30, {kQ, kK}, "scores fall along the keys"},
      {D::kSawtooth, "sawtooth", "N", 100, 2, 1e9, {kQ, kK}, "scores rise over N keys, and again"},
      non_finite(D::kNanQ, "nan-q", kQ,
                 "NaN in Q, at a third of the sequence; or in a part P of Q (0 to 1)"),
      non_finite(D::kNanK, "nan-k", kK, "NaN in K"),
      non_finite(D::kNanV, "nan-v", kV, "NaN in V"),
      non_finite(D::kNanDout, "nan-dout", kDout, "NaN in dO"),
      non_finite(D::kInfQ, "inf-q", kQ, "infinity in Q"),
      non_finite(D::kInfK, "inf-k", kK, "infinity in K"),
      non_finite(D::kInfV, "inf-v", kV, "infinity in V"),
      non_finite(D::kInfDout, "inf-dout", kDout, "infinity in dO"),
      plain(D::kHugeV, "huge-v", {kV}, "V times 1e37; fp16: 1e4; fp64: 1e300"),
      plain(D::kSubnormal, "denormal-v", {kV}, "V below the smallest normal number of the dtype"),
      plain(D::kTinyQK, "tiny-qk", {kQ, kK}, "Q and K times 1e-22; fp16: 1e-6; fp64: 1e-160"),
      plain(D::kZeroV, "zero-v", {kV}, "V is 0"),
      plain(D::kPositiveV, "positive-v", {kV}, "V has no negative number"),
      {D::kOffset, "offset", "X", 4, -1e30, 1e30, {kK, kV}, "X is added to K and V"},
      plain(D::kBiasColumns, "bias-columns", {kBias},
            "the bias is -inf in the first quarter of the columns and in every eighth"),
      {D::kOutlierElements,
       "outlier-elements",
       nullptr,
       0,
       0,
       0,
       {kQ, kK, kV},
       "1 number in 1000 has a deviation of 10"},
      plain(D::kEqual, "equal-keys", {kK}, "all keys are equal: all scores of a row are"),
      plain(D::kOneHot, "one-hot", {kQ, kK}, "one key outweighs all others"),
      plain(D::kAlternating, "alternating", {kQ, kK}, "the signs of large scores alternate"),
      plain(D::kRepeated, "repeated", {kQ, kK, kV}, "rows are copies of four"),
  };
}

std::string shortest(double x) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), x);
  return std::string(text, end.ptr);
}

// The clause of an error message about a parameter.
std::string limits(const DataKind& kind) {
  return std::string(kind.name) + ":" + kind.parameter + " with " + kind.parameter + " from " +
         shortest(kind.least) + " to " + shortest(kind.most);
}

std::string names() {
  std::string text;
  for (const DataKind& kind : data_kinds()) {
    if (!text.empty()) text += ", ";
    text += data_syntax(kind);
  }
  return text;
}

std::string must_be(const std::string& text, const std::string& what) {
  return std::string("\"").append(text).append("\" must be ").append(what);
}

std::optional<DataPart> parse_part(const std::string& text, std::string* error) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  for (const DataKind& kind : data_kinds()) {
    if (name != kind.name) continue;
    DataPart part = {kind.kind, kind.fallback};
    if (colon == std::string::npos && !std::isnan(kind.fallback)) return part;
    if (kind.parameter == nullptr) {
      *error = must_be(text, std::string(kind.name).append(", which has no parameter"));
      return std::nullopt;
    }
    const char* const end = text.data() + text.size();
    const char* const begin = colon == std::string::npos ? end : text.data() + colon + 1;
    const auto [stop, code] = std::from_chars(begin, end, part.parameter);
    const bool number = code == std::errc() && stop == end;
    if (number && part.parameter >= kind.least && part.parameter <= kind.most) return part;
    *error = must_be(text, limits(kind));
    return std::nullopt;
  }
  *error = must_be(text, std::string("one of ").append(names()));
  return std::nullopt;
}

}  // namespace

std::span<const DataKind> data_kinds() {
  static const std::vector<DataKind> kinds = make_kinds();
  return kinds;
}

std::string data_syntax(const DataKind& kind) {
  if (kind.parameter == nullptr) return kind.name;
  const std::string parameter = std::string(":") + kind.parameter;
  return kind.name + (std::isnan(kind.fallback) ? parameter : "[" + parameter + "]");
}

const DataKind& data_kind(Distribution kind) {
  return data_kinds()[static_cast<std::size_t>(kind)];
}

Data::Data(Distribution kind) {
  if (kind != Distribution::kNormal) parts.push_back({kind, data_kind(kind).fallback});
}

std::string data_name(const Data& data) {
  std::string text;
  for (const DataPart& part : data.parts) {
    const DataKind& kind = data_kind(part.kind);
    text += (text.empty() ? "" : "+") + std::string(kind.name);
    if (part.parameter != kind.fallback) text += ":" + shortest(part.parameter);
  }
  return text.empty() ? "normal" : text;
}

std::optional<Data> parse_data(const std::string& name, std::string* error) {
  Data data;
  for (std::size_t begin = 0; begin <= name.size();) {
    // An exponent has a plus of its own: 1e+30.
    std::size_t plus = name.find('+', begin);
    while (plus != std::string::npos && plus >= 2 && name[plus - 1] == 'e' &&
           std::isdigit(static_cast<unsigned char>(name[plus - 2])) != 0)
      plus = name.find('+', plus + 1);
    const std::size_t end = std::min(plus, name.size());
    const std::optional<DataPart> part = parse_part(name.substr(begin, end - begin), error);
    if (!part) return std::nullopt;
    if (part->kind != Distribution::kNormal) data.parts.push_back(*part);
    begin = end + 1;
  }
  return data;
}

std::vector<Data> all_data() {
  std::vector<Data> list;
  std::string error;
  for (const char* name : kAll) list.push_back(parse_data(name, &error).value());
  return list;
}

const char* lacking_tensor(const Data& data, const tilewise_problem& request) {
  for (const DataPart& part : data.parts) {
    for (const TensorMember member : data_kind(part.kind).changed) {
      if (problem::present(request.*member)) continue;
      return member == kBias ? "bias" : "dout";
    }
  }
  return nullptr;
}

bool changes(const DataPart& part, TensorMember tensor) {
  const std::vector<TensorMember>& changed = data_kind(part.kind).changed;
  return std::find(changed.begin(), changed.end(), tensor) != changed.end();
}

bool changes(const Data& data, TensorMember tensor) {
  return std::any_of(data.parts.begin(), data.parts.end(),
                     [&](const DataPart& part) { return changes(part, tensor); });
}

bool independent(const Data& data) {
  return std::all_of(data.parts.begin(), data.parts.end(), [](const DataPart& part) {
    return part.kind == Distribution::kOutlierElements;
  });
}

bool independent_rows(const Data& data) {
  return std::all_of(data.parts.begin(), data.parts.end(), [](const DataPart& part) {
    return part.kind == Distribution::kOutlierElements || part.kind == Distribution::kPositiveV ||
           part.kind == Distribution::kOffset || part.kind == Distribution::kScaled;
  });
}

}  // namespace tilewise::verify
