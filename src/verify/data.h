// The kinds of data that inputs are filled with: their names, and which tensors they change. The
// tests, `tilewise check`, `compare` and `bench` share them; verify/fill.h makes the numbers.
#pragma once

#include <tilewise/tilewise.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tilewise::verify {

// Each kind changes random normal numbers; data_kinds() says how.
enum class Distribution {
  kNormal,
  kScaled,
  kScaledV,
  kOutliers,
  kRising,
  kFalling,
  kSawtooth,
  kNanQ,
  kNanK,
  kNanV,
  kNanDout,
  kInfQ,
  kInfK,
  kInfV,
  kInfDout,
  kHugeV,
  kSubnormal,
  kTinyQK,
  kZeroV,
  kPositiveV,
  kOffset,
  kBiasColumns,
  kOutlierElements,
  kEqual,
  kOneHot,
  kAlternating,
  kRepeated,
};

using TensorMember = tilewise_tensor tilewise_problem::*;

struct DataKind {
  Distribution kind;
  const char* name;
  const char* parameter;  // what it stands for in help texts; nullptr if the kind has none
  double fallback;        // the parameter that a name without one means; NaN: it must be given
  double least;           // limits of the parameter
  double most;
  std::vector<TensorMember> changed;  // the tensors whose numbers are not plain N(0, 1)
  const char* meaning;                // one line
};

// Returns every kind, in the order of the enumeration.
std::span<const DataKind> data_kinds();
const DataKind& data_kind(Distribution kind);

// Returns how a kind is written: "zero-v", "scaled:X", "outliers[:X]".
std::string data_syntax(const DataKind& kind);

// A kind and its parameter.
struct DataPart {
  Distribution kind;
  double parameter;
  friend bool operator==(const DataPart&, const DataPart&) = default;
};

// Data of several kinds: each part changes the numbers that the part before it has left. No part is
// random normal data.
struct Data {
  Data() = default;
  // Data of one kind that needs no parameter. NOLINTNEXTLINE(google-explicit-constructor)
  Data(Distribution kind);
  std::vector<DataPart> parts;
  friend bool operator==(const Data&, const Data&) = default;
};

// Returns the name that parse_data() reads: "normal", "scaled:3000", "rising+outliers+nan-k".
std::string data_name(const Data& data);

// Returns the data of a name. Without a value, `*error` is one clause that says which part is wrong
// and what it must be.
std::optional<Data> parse_data(const std::string& name, std::string* error);

// Returns the data that `tilewise bench --data all` measures, random normal data first.
std::vector<Data> all_data();

// Returns the first of the tensors that the data is about and the request lacks; nullptr if there
// is none. NaN in dout means nothing to a forward pass.
const char* lacking_tensor(const Data& data, const tilewise_problem& request);

bool changes(const DataPart& part, TensorMember tensor);
bool changes(const Data& data, TensorMember tensor);

// True if the elements are independent random numbers of like size.
bool independent(const Data& data);

// True if so are the rows, although the numbers of V have a mean: then the elements of a row of O
// share the errors of its probabilities.
bool independent_rows(const Data& data);

}  // namespace tilewise::verify
