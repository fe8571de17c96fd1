// A case made real: tensors in memory, filled, guarded and wrapped in a tilewise_problem.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verify/case.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::verify {

// Every byte that is not an element of an input is 0xFF: NaN in each floating dtype. So reading
// beyond a tensor shows as NaN, an element of an output that nobody wrote is NaN, and a write
// outside an output is seen by damage().
class Instance {
 public:
  explicit Instance(const Case& description);

  const Case& description() const { return case_; }

  // Holds every tensor of the case, for both operations. Backward needs set_forward_results().
  const tilewise_problem& request() const { return request_; }

  // out and lse become those of `results` (any dtype and strides), rounded to the case's dtypes.
  void set_forward_results(const tilewise_problem& results);

  // Poisons the outputs of the operation and notes the state of everything else.
  void prepare(Operation operation);

  // After a run: "" if only outputs of the operation changed, else the name of the tensor beside
  // (or in) which something was overwritten.
  std::string damage(Operation operation);

 private:
  struct Region {
    Memory memory;
    std::vector<std::byte> before;
    std::vector<std::pair<const char*, tilewise_tensor tilewise_problem::*>> tensors;
  };
  struct Rows;     // a q-, k- or v-like tensor: its sizes
  struct Strides;  // where its elements lie

  using Member = tilewise_tensor tilewise_problem::*;

  void set_options();
  void add_rows();
  void add_interleaved();
  void add_indices();
  void add_score_inputs();
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
  void fill_rows(const tilewise_tensor& tensor, Random& random, bool keys);
  std::int32_t output_dtype() const;

  Case case_;
  tilewise_problem request_;
  std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace tilewise::verify
