// The tile sizes of the ladder, and finalised forms of its traffic between slow and fast memory,
// which `tilewise compare` prints next to the counted traffic. Row statistics (LSE, delta, m, l:
// O(N) elements) are left out on both sides, as in the papers.
#pragma once

#include <span>

#include "problem/problem.h"

namespace tilewise::reference {

enum class Algorithm {
  kThreePass,
  kOnlineSoftmax,
  kFlash1,
  kFlash2,
  kFlashDecoding,
  kFlashDecodingPp
};
inline constexpr Algorithm kAlgorithms[] = {Algorithm::kThreePass,     Algorithm::kOnlineSoftmax,
                                            Algorithm::kFlash1,        Algorithm::kFlash2,
                                            Algorithm::kFlashDecoding, Algorithm::kFlashDecodingPp};

// Returns the name of the algorithm's kernels: "three_pass", "online_softmax", "flash1", "flash2",
// "flash_decoding", "flash_decoding_pp".
const char* algorithm_name(Algorithm algorithm);

// Whether the algorithm is one for the backward pass too: Flash-Decoding is not.
bool has_backward(Algorithm algorithm);

struct TileSizes {
  std::int64_t q_rows;  // Br
  std::int64_t k_rows;  // Bc
};

// The tile sizes of FlashAttention-1, arXiv 2205.14135, Algorithm 1: Bc = ceil(M / 4D), Br =
// min(ceil(M / 4D), D) for a fast memory of M elements (bytes / size of an input element). With D
// != Dv, 4D becomes 2 (D + Dv). Both sizes are at least 1.
TileSizes flash1_tiles(std::int64_t sram_elements, std::int64_t head_dim, std::int64_t value_dim);

// FlashAttention-2 leaves the tile sizes to the implementer. Here Br = Bc is the largest size for
// which a fast memory of M elements holds the tiles of Q, O, K, V and S at once: Br (D + Dv) + Bc
// (D + Dv) + Br Bc <= M. It is a multiple of 16 from 16 on, and at least 1.
TileSizes flash2_tiles(std::int64_t sram_elements, std::int64_t head_dim, std::int64_t value_dim);

// The shape of dense attention with a causal mask or a window. A boolean mask, a bias and (in the
// backward pass of three_pass) softcap add bytes of their own.
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t q_len = 0;  // Sq
  std::int64_t k_len = 0;  // Sk
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t value_dim = 1;
  std::int64_t element_size = 4;  // in bytes, of every tensor
  std::int64_t window_left = -1;  // as in problem::Problem: causal is window_right = 0
  std::int64_t window_right = -1;
  bool top_left = false;
};

// Returns the shape of a dense problem without slices and seqused_k.
AttentionShape shape_of(const problem::Problem& problem);

// Bytes are doubles, which are exact up to 2^53, and which no shape overflows.
struct TensorTraffic {
  const char* name;  // "q", "k", "v", "out", "scores", "probs", "dout", "dq", "dk", "dv", "dprobs",
                     // "dscores"
  double read_bytes;
  double written_bytes;
};

struct Prediction {
  static constexpr int kMaxTensors = 12;
  TileSizes tiles = {0, 0};  // 0 if the algorithm has no tiles
  TensorTraffic tensors[kMaxTensors] = {};
  int tensor_count = 0;
  double flops = 0;  // of the matrix products, without masked pairs: 2 per multiply-add

  std::span<const TensorTraffic> rows() const {
    return {tensors, static_cast<std::size_t>(tensor_count)};
  }
  double read_bytes() const;
  double written_bytes() const;
  double bytes() const { return read_bytes() + written_bytes(); }
  double intensity() const;  // flops per byte; 0 without traffic
};

// Returns the traffic of the algorithm's kernel for all of dq, dk, dv (backward: has_backward())
// with `sram_bytes` of fast memory. It equals what the code counts, byte for byte
// (tests/reference/traffic_test.cc). With D = Dv and one head, in elements, Tr = ceil(Sq / Br) and
// Tc = ceil(Sk / Bc):
//   three_pass      (2 Sq + 2 Sk) D + 4 Sq Sk          backward (7 Sq + 5 Sk) D + 10 Sq Sk
//   online_softmax  2 Sq D + 3 Sq Sk D                 backward 4 Sq D + 6 Sq Sk D
//   flash1          2 Sk D + 3 Tc Sq D                 backward 4 Sk D + 5 Tc Sq D
//   flash2          2 Sq D + 2 Tr Sk D                 backward 4 Sk D + 2 Sq D + 4 Tc Sq D
//   flash_decoding  2 Sq D + 2 Tr Sk D, and 2 C Sq D of partial results if there are C > 1 splits;
//                   a tile has the rows of all heads of a group: Tr = ceil(G Sq / Br) for G heads
//   flash_decoding_pp  as flash_decoding, if no split falls back
Prediction predict(Algorithm algorithm, problem::Operation operation, const AttentionShape& shape,
                   std::int64_t sram_bytes);

// Returns the bytes of the prediction for a problem; NaN for problems that the finalised forms do
// not cover. sram_bytes = 0 means problem::kDefaultSramBytes.
double predicted_traffic(Algorithm algorithm, const problem::Problem& problem,
                         std::int64_t sram_bytes);

}  // namespace tilewise::reference
