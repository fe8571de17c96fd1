#include "verify/dequantised.h"

#include <vector>

#include "problem/tensors.h"

namespace tilewise::verify {
namespace {

std::int64_t integer_at(const tilewise_tensor& list, std::int64_t offset) {
  return list.dtype == TILEWISE_INT64 ? static_cast<const std::int64_t*>(list.data)[offset]
                                      : static_cast<const std::int32_t*>(list.data)[offset];
}

// The sequence of every token of a packed tensor; -1 for tokens of none.
std::vector<std::int64_t> sequences_of(const tilewise_tensor& starts, std::int64_t tokens) {
  std::vector<std::int64_t> sequences(static_cast<std::size_t>(tokens), starts.rank == 0 ? 0 : -1);
  for (std::int64_t b = 0; starts.rank != 0 && b + 1 < starts.shape[0]; ++b) {
    const std::int64_t end = integer_at(starts, (b + 1) * starts.strides[0]);
    for (std::int64_t t = integer_at(starts, b * starts.strides[0]); t < end; ++t)
      sequences[static_cast<std::size_t>(t)] = b;
  }
  return sequences;
}

// The sequence of every page of a cache, and the page's number in it; -1 for pages of none.
struct Place {
  std::int64_t sequence = -1;
  std::int64_t number = -1;
};
std::vector<Place> places_of(const tilewise_tensor& table, std::int64_t pages) {
  std::vector<Place> places(static_cast<std::size_t>(pages));
  for_each_element(table, [&](std::int64_t i, std::int64_t offset) {
    const std::int64_t page = integer_at(table, offset);
    if (page >= 0 && page < pages)
      places[static_cast<std::size_t>(page)] = {i / table.shape[1], i % table.shape[1]};
  });
  return places;
}

// Multiplies the numbers of q, k or v by their scales. tensor: contiguous
void multiply_by_scales(const tilewise_problem& request, const tilewise_tensor& scales, bool query,
                        const tilewise_tensor& tensor) {
  if (!problem::present(scales)) return;
  const bool packed = tensor.rank == 3;
  const bool paged = !query && request.page_table.rank != 0;
  const bool heads_first = !packed && request.layout == TILEWISE_BHSD;
  const std::int64_t outer = packed ? 1 : tensor.shape[0];
  const std::int64_t rows = tensor.shape[packed ? 0 : heads_first ? 2 : 1];
  const std::int64_t heads = tensor.shape[packed || heads_first ? 1 : 2];
  const std::int64_t width = tensor.shape[tensor.rank - 1];
  const std::vector<std::int64_t> sequences =
      packed ? sequences_of(query ? request.cu_seqlens_q : request.cu_seqlens_k, rows)
             : std::vector<std::int64_t>();
  const std::vector<Place> places =
      paged ? places_of(request.page_table, outer) : std::vector<Place>();
  for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    const std::int64_t line = i / width;
    std::int64_t row = heads_first ? line % rows : line / heads % rows;
    const std::int64_t head = heads_first ? line / rows % heads : line % heads;
    std::int64_t sequence = packed ? sequences[static_cast<std::size_t>(row)] : line / heads / rows;
    if (paged) {
      const Place place = places[static_cast<std::size_t>(sequence)];
      row += place.number * rows;
      sequence = place.sequence;
    }
    if (scales.rank == 3 && packed) sequence = 0;
    if (scales.rank > 1 && sequence < 0) return;
    std::int64_t at = 0;
    if (scales.rank > 1) {
      const std::int64_t kv_head = head * scales.shape[1] / heads;
      at = sequence * scales.strides[0] + kv_head * scales.strides[1];
      if (scales.rank == 3) at += row / 128 * scales.strides[2];
    }
    write_element(tensor, offset, read_element(tensor, offset) * read_element(scales, at));
  });
}

}  // namespace

Dequantised::Dequantised(const tilewise_problem& request, std::int32_t dtype) : request_(request) {
  if (!problem::is_fp8(request.k.dtype)) return;
  // The product of two floats is exact in fp64, so that it is rounded once.
  TensorOwner exact;
  const auto widen = [&](tilewise_tensor tilewise_problem::*member,
                         tilewise_tensor tilewise_problem::*scales) {
    const tilewise_tensor wide = exact.copy(TILEWISE_FP64, request.*member);
    multiply_by_scales(request, request.*scales, member == &tilewise_problem::q, wide);
    request_.*member = owner_.copy(dtype, wide);
    request_.*scales = {};
  };
  widen(&tilewise_problem::q, &tilewise_problem::q_descale);
  widen(&tilewise_problem::k, &tilewise_problem::k_descale);
  widen(&tilewise_problem::v, &tilewise_problem::v_descale);
  if (problem::present(request.bias)) request_.bias = owner_.copy(dtype, request.bias);
  request_.out.data = nullptr;
  request_.out.dtype = dtype;
}

}  // namespace tilewise::verify
