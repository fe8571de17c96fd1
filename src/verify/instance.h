// An instance is a case with memory: its tensors are allocated, filled, guarded and wrapped in a
// tilewise_problem.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verify/case.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// Every byte that is not an element of an input is 0xFF, which is NaN in each floating dtype. So a
// read beyond a tensor shows as NaN, an element of an output that was never written is NaN, and
// damage() detects a write outside an output.
class Instance {
 public:
  explicit Instance(const Case& description);

  const Case& description() const { return case_; }

  // Returns every tensor of the case, for both operations. Backward needs set_forward_results().
  const tilewise_problem& request() const { return request_; }

  // Sets out and lse to those of `results` (any dtype and strides), rounded to the case's dtypes.
  void set_forward_results(const tilewise_problem& results);

  // Poisons the outputs of the operation and records the state of everything else.
  void prepare(Operation operation);

  // Call this after a run. Returns "" if only outputs of the operation changed, else the name of
  // the tensor next to which, or in which, something was overwritten.
  std::string damage(Operation operation);

 private:
  struct Region {
    Memory memory;
    std::vector<std::byte> before;
    std::vector<std::pair<const char*, tilewise_tensor tilewise_problem::*>> tensors;
  };
  struct Rows;     // the sizes of a q-, k- or v-like tensor
  struct Strides;  // the position of its elements

  using Member = tilewise_tensor tilewise_problem::*;

  void set_options();
  void add_rows();
  void add_interleaved();
  void add_indices();
  void add_page_table();
  void add_score_inputs();
  void add_descales();
  void add_statistics();
  Rows query_rows(std::int64_t width) const;
  Rows key_rows(std::int64_t width) const;
  Strides strides(const Rows& rows, Storage storage) const;
  tilewise_tensor row_tensor(const Rows& rows, const Strides& strides, std::int32_t dtype,
                             std::byte* base) const;
  void add_row_tensor(const char* name, Member member, const Rows& rows, std::int32_t dtype);
  std::byte* add_region(std::int64_t bytes);
  void add_member(const char* name, Member member, const tilewise_tensor& tensor);
  void add_contiguous(const char* name, Member member, std::int32_t dtype,
                      const std::vector<std::int64_t>& shape);
  void add_list(const char* name, Member member, const std::vector<std::int64_t>& numbers,
                const std::vector<std::int64_t>& shape, bool wide);
  void add_score_tensor(const char* name, Member member, const ScoreTensor& description,
                        std::int32_t dtype);
  void fill(const tilewise_tensor& tensor, Random& random);
  void fill_inputs();
  std::int64_t keys_in_use(std::int64_t b) const;
  void poison_unused_pages();
  std::int32_t q_dtype() const;
  std::int32_t output_dtype() const;

  Case case_;
  tilewise_problem request_;
  std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace tilewise::verify
