// The problem in the one form that kernels read: every layout is reduced to (batch, head, row)
// strides and every default is resolved. problem/validate.h builds it from the public
// tilewise_problem. It is plain data and cheap to copy.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::problem {

enum class Operation : std::int32_t { kForward = TILEWISE_FORWARD, kBackward = TILEWISE_BACKWARD };

// A tensor addressed by (batch, head, row, column). Strides count elements and are 0 where the
// dimension is absent or broadcast. For a packed tensor the batch index is 0 and rows are token
// numbers. The column is an index into D or Dv (stride 1), or the key of a mask or bias.
struct View {
  void* data = nullptr;
  std::int32_t dtype = 0;  // 0 if the tensor is absent
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;

  TILEWISE_INLINE bool present() const { return dtype != 0; }
  TILEWISE_INLINE std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t r,
                                      std::int64_t c = 0) const {
    return b * batch + h * head + r * row + c * column;
  }
};

// A list of int32 or int64 numbers (cu_seqlens, seqused) or of rows of numbers (slices, parts).
struct IndexView {
  const void* data = nullptr;
  std::int32_t dtype = 0;  // 0 if the list is absent
  std::int64_t count = 0;  // B + 1, B, or the number of slices
  std::int64_t stride = 0;
  std::int64_t columns = 1;  // 5 or 6 for slices, 4 for parts
  std::int64_t column_stride = 1;

  TILEWISE_INLINE bool present() const { return dtype != 0; }
  TILEWISE_INLINE std::int64_t at(std::int64_t index, std::int64_t column = 0) const {
    const std::int64_t offset = index * stride + column * column_stride;
    return dtype == TILEWISE_INT64 ? static_cast<const std::int64_t*>(data)[offset]
                                   : static_cast<const std::int32_t*>(data)[offset];
  }
};

// The table of a paged cache. k and v are then pages (N, page size, Hk, D): the batch index of
// their views is the number of a page, and the row is a key of the page. Key j of sequence b is row
// row_of(j) of page page_of(b, j). The table may hold anything: what names no page names the first
// or the last one.
struct PageTable {
  const std::int32_t* data = nullptr;
  std::int64_t batch = 0;      // strides
  std::int64_t column = 0;     //
  std::int64_t columns = 0;    // pages of a sequence
  std::int64_t pages = 0;      // N
  std::int64_t page_size = 0;  // keys of a page; 0 if the cache has no pages

  TILEWISE_INLINE bool present() const { return page_size != 0; }
  TILEWISE_INLINE std::int64_t page_of(std::int64_t b, std::int64_t key) const {
    return math::clamp(data[b * batch + key / page_size * column], 0, pages - 1);
  }
  TILEWISE_INLINE std::int64_t row_of(std::int64_t key) const { return key % page_size; }
};

// Rows of a tensor of fp8 that share a number of a descale tensor with blocks.
inline constexpr std::int64_t kDescaleRows = 128;

struct Problem {
  Operation operation = Operation::kForward;
  std::int32_t device = TILEWISE_CPU;  // of all tensors
  std::int32_t device_index = 0;
  std::int32_t dtype = 0;       // of k and v; q and dout have it too unless it is fp8
  std::int32_t statistics = 0;  // dtype of lse and delta: fp64 for fp64 inputs, else fp32
  std::int64_t batch = 0;       // B, the number of sequences
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // Hk
  std::int64_t group = 0;       // G = H / Hk (1 when there are no heads)
  std::int64_t head_dim = 0;    // D
  std::int64_t value_dim = 0;   // Dv
  bool q_packed = false;
  bool k_packed = false;
  std::int64_t q_rows = 0;  // rows of q's sequence axis: Sq, or T when packed
  std::int64_t k_rows = 0;
  std::int64_t max_q = 0;  // bound of a sequence's length: Sq, or max_seqlen_q when packed
  std::int64_t max_k = 0;

  View q, k, v;                               // (B, H|Hk, S, D|Dv)
  View out, lse;                              // lse has no column
  View dout, dlse;                            // inputs of the backward pass
  View dq, dk, dv;                            // outputs of the backward pass, each optional
  View mask, bias, dbias;                     // (B, H, Sq, Sk), strides 0 where broadcast
  std::int64_t bias_shape[4] = {0, 0, 0, 0};  // extents of bias: 1 where broadcast
  View alibi_slopes;                          // (B, H), row and column unused
  View sink;                                  // (H)
  View dsink;                                 // (H)
  View dalibi_slopes;                         // (B, H), or (H) for all batches
  View phi;                                   // (H), stride 0 where all heads share it
  View phi_fallbacks;                         // (1) int64, added to
  bool slopes_per_batch = false;              // dalibi_slopes is (B, H)
  IndexView cu_seqlens_q, cu_seqlens_k;
  IndexView seqused_q, seqused_k;
  IndexView slices;
  IndexView parts;  // (B, 4): see part_of() in problem/sequence.h

  double scale = 0;    // with its default resolved
  double softcap = 0;  // 0 if off
  double dropout_p = 0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  bool top_left = false;
  std::int64_t window_left = -1;  // causal is included: window_right is then 0
  std::int64_t window_right = -1;
  bool deterministic = false;
  bool batch_invariant = false;
  bool accumulate = false;  // outputs hold the results of earlier parts, which stay in them

  PageTable page_table;

  View q_descale, k_descale, v_descale;  // (B, Hk, blocks of kDescaleRows rows), of fp8

  tilewise_score_function score_function = {};

  // True if sequences may have different numbers of queries: packed, or cut by seqused_q.
  TILEWISE_INLINE bool varlen_q() const { return q_packed || seqused_q.present(); }

  TILEWISE_INLINE bool has_score_function() const { return score_function.forward != nullptr; }

  // True if the score is more than scale * q.k: with softcap, a score function, bias, mask or
  // ALiBi. (Dropout acts on the probabilities.)
  TILEWISE_INLINE bool has_score_mod() const {
    return softcap > 0 || has_score_function() || bias.present() || mask.present() ||
           alibi_slopes.present();
  }

  // The number that row `row` of `view` is multiplied by, which is q, k or v. kv_head: for q, that
  // of the query head; row: of the tensor, or the key's number in a paged cache
  TILEWISE_INLINE float descale(const View& view, std::int64_t b, std::int64_t kv_head,
                                std::int64_t row) const {
    const View& scales = &view == &q ? q_descale : &view == &k ? k_descale : v_descale;
    if (!scales.present()) return 1;
    return static_cast<const float*>(scales.data)[scales.offset(b, kv_head, row / kDescaleRows)];
  }

  // The offset of a key in `view`, which is k or v. row: k_start + the key's number in its sequence
  TILEWISE_INLINE std::int64_t key_offset(const View& view, std::int64_t b, std::int64_t h,
                                          std::int64_t row) const {
    if (!page_table.present()) return view.offset(b, h, row);
    return view.offset(page_table.page_of(b, row), h, page_table.row_of(row));
  }
};

TILEWISE_INLINE std::int64_t dtype_size(std::int32_t dtype) {
  switch (dtype) {
    case TILEWISE_FP64:
    case TILEWISE_INT64:
      return 8;
    case TILEWISE_FP32:
    case TILEWISE_INT32:
      return 4;
    case TILEWISE_BF16:
    case TILEWISE_FP16:
      return 2;
    case TILEWISE_BOOL:
    case TILEWISE_E4M3:
    case TILEWISE_E5M2:
      return 1;
    default:
      return 0;
  }
}

TILEWISE_INLINE bool is_fp8(std::int32_t dtype) {
  return dtype == TILEWISE_E4M3 || dtype == TILEWISE_E5M2;
}

// "cpu" or "cuda:1", for messages.
struct DeviceText {
  char text[32];
};
DeviceText device_text(std::int32_t device, std::int32_t index);

const char* dtype_name(std::int32_t dtype);  // "fp32", ...; "invalid dtype" for other numbers

}  // namespace tilewise::problem
