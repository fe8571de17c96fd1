// Causal attention of one layer through the public interface of Tilewise: two plans made once for
// the shape, one workspace, and views into the layer's packed q, k, v buffer. The model uses
// attention only through this file. Over several ranks it is ring attention.
#pragma once

#include <cstdint>
#include <string>
#include <tilewise/tilewise.hpp>
#include <variant>

#include "compute.h"
#include "config.h"
#include "ranks.h"

namespace gpt {

// The bytes that attention needs in addition to its inputs and outputs.
struct AttentionMemory {
  std::size_t forward_workspace;
  std::size_t backward_workspace;
  std::size_t saved_lse;  // per layer, from forward to backward
};

template <class T>
class Attention {
 public:
  // Makes plans for batch sequences of `length` tokens. `kernel` forces a kernel by name; empty
  // means the library's choice. With `ranks`, q, k and v have this rank's tokens of each sequence,
  // and S below is their number. Throws tilewise::Error. `compute` must outlive the object.
  Attention(const ModelConfig& config, std::int64_t batch, std::int64_t length,
            const std::string& kernel, const Compute& compute, const Ranks* ranks = nullptr);

  // Computes out (B, S, H, D) and lse (B, H, S) from qkv (B, S, (H + 2 Hk) D).
  void forward(const T* qkv, T* out, T* lse) const;

  struct Gradient {
    const T* qkv;
    const T* out;
    const T* lse;
    const T* dout;  // (B, S, H, D)
    T* dqkv;        // (B, S, (H + 2 Hk) D), overwritten
  };
  void backward(const Gradient& arrays) const;

  std::string kernel() const;  // "ring" over several ranks
  AttentionMemory memory() const;

 private:
  // Returns the problem with views into qkv and the outputs; the pointers are null during planning.
  tilewise::Problem forward_problem(const T* qkv, const T* out, const T* lse) const;
  tilewise::Problem backward_problem(const Gradient& arrays) const;
  tilewise::Tensor view(const T* first, std::int64_t heads, std::int64_t row_width) const;

  ModelConfig config_;
  std::int64_t batch_;
  std::int64_t length_;  // S
  const Compute& compute_;
  using AttentionPlan = std::variant<tilewise::Plan, tilewise::DistributedPlan>;
  static AttentionPlan make_plan(tilewise::Operation operation, const tilewise::Problem& problem,
                                 std::int64_t length, const tilewise::PlanOptions& options,
                                 const Ranks* ranks);
  AttentionPlan forward_plan_;
  AttentionPlan backward_plan_;
  tilewise::Workspace forward_workspace_;
  tilewise::Workspace backward_workspace_;
};

}  // namespace gpt
