// Decides which tensors may share memory: inputs with inputs, and views that interleave without
// sharing an element.
#include <cstdint>
#include <iterator>
#include <span>

#include "math/integer.h"
#include "problem/tensors.h"
#include "problem/validate.h"

namespace tilewise::problem {
namespace {

constexpr int kDimensions = TILEWISE_MAX_RANK;

// A tensor as bytes: the element at index i begins at base + sum(i[d] * strides[d]).
struct Region {
  std::intptr_t base = 0;
  std::intptr_t low = 0;   // first byte
  std::intptr_t high = 0;  // one past the last byte
  std::int64_t element = 0;
  std::int64_t sizes[kDimensions] = {1, 1, 1, 1};
  std::int64_t strides[kDimensions] = {0, 0, 0, 0};  // 0 where the size is 1
};

Region region_of(const tilewise_tensor& tensor) {
  Region region;
  region.element = dtype_size(tensor.dtype);
  region.base = reinterpret_cast<std::intptr_t>(tensor.data);
  region.low = region.high = region.base;
  for (int d = 0; d < tensor.rank; ++d) {
    region.sizes[d] = tensor.shape[d];
    region.strides[d] = tensor.shape[d] > 1 ? tensor.strides[d] * region.element : 0;
    const std::intptr_t reach = (tensor.shape[d] - 1) * region.strides[d];
    (reach < 0 ? region.low : region.high) += reach;
  }
  region.high += region.element;
  return region;
}

bool empty(const tilewise_tensor& tensor) {
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return true;
  }
  return false;
}

std::int64_t magnitude(std::int64_t x) { return x < 0 ? -x : x; }

// Sorts the dimensions of the region by falling stride.
void sort_dimensions(const Region& region, int order[kDimensions]) {
  for (int d = 0; d < kDimensions; ++d) {
    int slot = d;
    while (slot > 0 && magnitude(region.strides[order[slot - 1]]) < magnitude(region.strides[d])) {
      order[slot] = order[slot - 1];
      --slot;
    }
    order[slot] = d;
  }
}

// Returns how far the dimensions from `depth` on can move the difference of two elements, in either
// direction.
std::int64_t reach_below(const Region& a, const Region& b, const int* order, int depth) {
  std::int64_t reach = 0;
  for (; depth < kDimensions; ++depth) {
    const int d = order[depth];
    reach +=
        (a.sizes[d] - 1) * magnitude(a.strides[d]) + (b.sizes[d] - 1) * magnitude(b.strides[d]);
  }
  return reach;
}

constexpr std::int64_t kMostDigits = 64;

// Searches for indices with sum((index_a[d] - index_b[d]) * stride[d]) = distance, one dimension
// after another. It tries each difference of indices that the remaining dimensions can still
// compensate; nested strides leave two of them. If there are very many, the search gives up and
// returns false; "true" is always a proof.
bool reaches(const Region& a, const Region& b, const int* order, int depth, std::int64_t distance) {
  if (depth == kDimensions) return distance == 0;
  const int d = order[depth];
  const std::int64_t stride = a.strides[d] != 0 ? a.strides[d] : b.strides[d];
  if (stride == 0) return reaches(a, b, order, depth + 1, distance);
  const std::int64_t reach = reach_below(a, b, order, depth + 1);
  const std::int64_t target = stride > 0 ? distance : -distance;
  const std::int64_t most = (stride > 0 ? a : b).sizes[d] - 1;
  const std::int64_t least = -((stride > 0 ? b : a).sizes[d] - 1);
  const std::int64_t first = math::max(least, (target - reach) / magnitude(stride) - 1);
  const std::int64_t last = math::min(most, (target + reach) / magnitude(stride) + 1);
  if (last - first > kMostDigits) return false;
  for (std::int64_t digit = first; digit <= last; ++digit) {
    const std::int64_t rest = target - digit * magnitude(stride);
    if (magnitude(rest) > reach) continue;
    if (reaches(a, b, order, depth + 1, stride > 0 ? rest : -rest)) return true;
  }
  return false;
}

bool same_strides(const Region& a, const Region& b) {
  for (int d = 0; d < kDimensions; ++d) {
    if (a.strides[d] != b.strides[d] && a.sizes[d] > 1 && b.sizes[d] > 1) return false;
  }
  return a.element == b.element;
}

enum class Overlap { kNone, kUnknown, kProven };

Overlap overlap_of(const Region& a, const Region& b) {
  if (a.high <= b.low || b.high <= a.low) return Overlap::kNone;
  if (a.base == b.base) return Overlap::kProven;
  if (!same_strides(a, b)) return Overlap::kUnknown;
  int order[kDimensions];
  sort_dimensions(a, order);
  return reaches(a, b, order, 0, b.base - a.base) ? Overlap::kProven : Overlap::kNone;
}

std::int64_t common_divisor(std::int64_t a, std::int64_t b) {
  while (b != 0) {
    const std::int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// True if two dimensions of one tensor reach the same element within their sizes. This covers any
// size, but only pairs of dimensions.
bool two_dimensions_meet(const tilewise_tensor& tensor) {
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] <= 1) continue;
    const std::int64_t stride_i = magnitude(tensor.strides[i]);
    if (stride_i == 0) return true;
    for (int j = i + 1; j < tensor.rank; ++j) {
      if (tensor.shape[j] <= 1) continue;
      const std::int64_t stride_j = magnitude(tensor.strides[j]);
      if (stride_j == 0) return true;
      const std::int64_t divisor = common_divisor(stride_i, stride_j);
      if (stride_j / divisor < tensor.shape[i] && stride_i / divisor < tensor.shape[j]) return true;
    }
  }
  return false;
}

// True if two different elements of one tensor share an address: a step in one dimension is undone
// by steps in those of smaller strides.
bool shares_own_elements(const tilewise_tensor& tensor) {
  if (two_dimensions_meet(tensor)) return true;
  const Region region = region_of(tensor);
  int order[kDimensions];
  sort_dimensions(region, order);
  for (int depth = 0; depth < kDimensions; ++depth) {
    const int d = order[depth];
    if (region.strides[d] == 0) continue;
    const std::int64_t reach = reach_below(region, region, order, depth + 1) / 2;
    const std::int64_t within = math::min(region.sizes[d] - 1, kMostDigits);
    for (std::int64_t steps = 1; steps <= within; ++steps) {
      if (steps * magnitude(region.strides[d]) > reach) break;
      if (reaches(region, region, order, depth + 1, steps * region.strides[d])) return true;
    }
  }
  return false;
}

Status check_output(const Operand& output, std::span<const Operand> operands) {
  const tilewise_tensor& tensor = *output.tensor;
  if (shares_own_elements(tensor)) {
    return fail(
        TILEWISE_INVALID_ARGUMENT,
        "%s: two of its elements share an address (strides %lld %lld %lld %lld)", output.name,
        static_cast<long long>(tensor.strides[0]), static_cast<long long>(tensor.strides[1]),
        static_cast<long long>(tensor.strides[2]), static_cast<long long>(tensor.strides[3]));
  }
  const Region region = region_of(tensor);
  for (const Operand& other : operands) {
    if (other.tensor == &tensor) continue;
    const Overlap overlap = overlap_of(region, region_of(*other.tensor));
    const bool is_input = other.role == Role::kInput;
    if (overlap == Overlap::kProven || (overlap == Overlap::kUnknown && is_input)) {
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "%s shares memory with %s: outputs need memory of their own", output.name,
                  other.name);
    }
  }
  return TILEWISE_OK;
}

Status check_address(const Operand& operand) {
  const tilewise_tensor& tensor = *operand.tensor;
  if (tensor.data == nullptr) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: data is NULL but the tensor has elements",
                operand.name);
  }
  const std::uintptr_t size = static_cast<std::uintptr_t>(dtype_size(tensor.dtype));
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % size == 0) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: data is %p, must be a multiple of %lld bytes (%s)",
              operand.name, tensor.data, static_cast<long long>(size), dtype_name(tensor.dtype));
}

}  // namespace

bool has_elements(const tilewise_tensor& tensor) { return present(tensor) && !empty(tensor); }

Status check_operands(std::span<const Operand> operands) {
  for (const Operand& operand : operands) {
    if (const Status status = check_address(operand); status != TILEWISE_OK) return status;
  }
  for (const Operand& operand : operands) {
    if (!is_written(operand.role)) continue;
    if (const Status status = check_output(operand, operands); status != TILEWISE_OK) return status;
  }
  return TILEWISE_OK;
}

Status check_pointers(Operation operation, const tilewise_problem& request) {
  Operand operands[std::size(kTensors)];
  std::size_t count = 0;
  for (const NamedTensor& named : kTensors) {
    const tilewise_tensor& tensor = request.*named.member;
    const Role role = named.role(operation);
    if (role != Role::kUnused && has_elements(tensor))
      operands[count++] = {named.name, &tensor, role};
  }
  return check_operands({operands, count});
}

}  // namespace tilewise::problem
