// A case is the plain description of a problem, from which verify/instance.h makes tensors. Equal
// cases give equal numbers, so the one line of describe() reproduces a problem completely.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "verify/data.h"

namespace tilewise::verify {

using problem::Operation;

// The arrangement of q, k, v and the tensors of their shapes in memory.
enum class Storage {
  kContiguous,   // in the order of the layout
  kPadded,       // gaps between rows, and a base that no vector is aligned to
  kTransposed,   // (B, S, H, D) over the memory of (B, H, S, D), and the other way round
  kInterleaved,  // q, k, v are views of one (B, S, H + 2 Hk, D) buffer, dq, dk, dv of another
  kExpanded,     // k and v have stride 0 over batch and heads
};

// A tensor that broadcasts to (B, H, Sq, Sk).
struct ScoreTensor {
  bool present = false;
  int rank = 4;                                         // 1 to 4: dimensions from the right
  std::array<bool, 4> full = {true, true, true, true};  // false: the size of that dimension is 1
};

// The part of a tensor of fp8 that shares a scale.
enum class Descale { kAbsent, kTensor, kHeads, kBlocks };

// The gradients to compute.
enum Gradients : unsigned {
  kDQ = 1,
  kDK = 2,
  kDV = 4,
  kDBias = 8,
  kDSink = 16,
  kAllGradients = 31,  // all that the problem has, but those of slopes, which few kernels compute
  kDAlibiSlopes = 32,
};

using Slice = std::array<std::int64_t, 6>;  // q0 q1 k0 k1 kind head

struct Case {
  Operation operation = Operation::kForward;
  std::int32_t dtype = TILEWISE_FP32;
  std::int32_t output_dtype = 0;       // of out, dq, dk, dv; 0: dtype, or bf16 for fp8
  std::int32_t q_dtype = 0;            // of q and bias; 0: dtype, and a bias of bf16 for fp8
  Descale descale = Descale::kAbsent;  // of each tensor of fp8
  std::int64_t batch = 1;
  std::int64_t q_len = 1;  // Sq; T of a packed side without lengths
  std::int64_t k_len = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t value_dim = 1;

  std::int32_t layout = TILEWISE_BSHD;
  Storage storage = Storage::kContiguous;
  bool q_packed = false;
  bool k_packed = false;
  std::vector<std::int64_t> q_lengths;  // (batch) of a packed side; empty with slices
  std::vector<std::int64_t> k_lengths;
  std::int64_t unowned = 0;          // tokens before and after the sequences of a packed side
  bool max_lengths_known = true;     // whether max_seqlen_q and max_seqlen_k are given
  std::vector<std::int64_t> used;    // seqused_k (batch); empty: absent
  std::vector<std::int64_t> used_q;  // seqused_q (batch); empty: absent
  std::int64_t page_size = 0;  // k and v are pages, and k_len is a multiple of it; 0: no pages
  bool wide_indices = false;   // cu_seqlens, seqused_q and seqused_k as int64

  bool causal = false;
  std::int32_t alignment = TILEWISE_BOTTOM_RIGHT;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::vector<Slice> slices;  // empty: absent
  bool slice_heads = false;   // whether the list has the sixth column
  ScoreTensor mask;
  ScoreTensor bias;
  bool bias_fp32 = false;   // false: the bias has the dtype of q
  bool bias_masks = false;  // whether some elements of the bias are -infinity
  bool alibi = false;
  bool alibi_per_batch = false;
  bool sink = false;
  bool score_function = false;  // that of verify/score_function.h
  std::vector<double> phi;      // forward: (1) or (H), with a counter of fallbacks; empty: absent
  double softcap = 0;
  double dropout_p = 0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  double scale = TILEWISE_DEFAULT_SCALE;

  // Places in the rows and keys of every sequence: the case is computed as calls on the pieces
  // between them, which accumulate (verify/part_calls.h). Empty: one call.
  std::vector<std::int64_t> q_cuts;
  std::vector<std::int64_t> k_cuts;

  bool lse = true;    // whether forward returns it
  bool dlse = false;  // whether backward gets one
  unsigned gradients = kAllGradients;
  bool deterministic = false;
  bool batch_invariant = false;

  Data distribution;       // of the inputs
  std::uint64_t seed = 1;  // of their random numbers

  bool is_cut() const { return !q_cuts.empty() || !k_cuts.empty(); }
};

// Returns one line that names every field that is not at its default.
std::string describe(const Case& description);

// Returns (B, H, max Sq, max Sk), the shape that mask and bias broadcast to.
std::array<std::int64_t, 4> score_shape(const Case& description);

// Returns T for a packed side, the number of rows otherwise.
std::int64_t query_tokens(const Case& description);
std::int64_t key_tokens(const Case& description);

// Returns N, the pages of k and v: those that the table names, and some that no sequence uses.
std::int64_t page_count(const Case& description);

}  // namespace tilewise::verify
