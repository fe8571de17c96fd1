// Attention in long double, written directly from docs/semantics.md without anything of src/math.
// The oracle itself is checked against it. Its gradients come from finite differences.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>
#include <vector>

namespace tilewise::reference_test {

// The elements of a tensor in row-major order, widened.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<long double> values;

  bool present() const { return !shape.empty(); }
};

class BruteForce {
 public:
  // Copies the inputs of a valid request.
  explicit BruteForce(const tilewise_problem& request);

  // Fills out and lse.
  void run();

  // Calls run() and returns the scalar whose gradients backward computes: the sum of out * dout +
  // lse * dlse.
  long double loss();

  // Returns d loss / d array by the five-point rule; the error is of order 1e-13 for inputs of
  // order 1.
  std::vector<double> gradient(Array* array);

  Array q, k, v, bias, sink, slopes, dout, dlse;  // inputs
  Array out, lse;                                 // results

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  struct Row {
    std::int64_t batch;
    std::int64_t head;
    std::int64_t i;      // in the sequence
    std::int64_t token;  // in the tensor
    std::int64_t q_len;
    Range keys;  // the keys of the sequence, in the tensor
    std::int64_t diagonal() const;
    bool top_left;
  };

  std::int64_t query_rows() const;  // of the tensor
  Range query_range(std::int64_t b) const;
  Range key_range(std::int64_t b) const;
  bool visible(const Row& row, std::int64_t j) const;
  bool slice_shows(const Row& row, std::int64_t j) const;
  long double score(const Row& row, std::int64_t j) const;
  long double dropout(const Row& row, std::int64_t j) const;
  void run_row(const Row& row);
  std::size_t place(const Array& array, bool packed, std::int64_t b, std::int64_t h,
                    std::int64_t token) const;

  tilewise_problem request_;
  std::int64_t batch_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t group_ = 1;
  bool q_packed_ = false;
  bool k_packed_ = false;
  long double scale_ = 0;
};

}  // namespace tilewise::reference_test
