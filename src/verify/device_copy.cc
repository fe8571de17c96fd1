#include "verify/device_copy.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "cuda/host/runtime.h"
#include "problem/tensors.h"

namespace tilewise::verify {
namespace {

constexpr std::int64_t kGuardBytes = 4096;
constexpr int kPoison = 0xFF;

void check(problem::Status status) {
  if (status != TILEWISE_OK) throw std::runtime_error(problem::message());
}

struct Extent {
  bool written;  // true if it holds an output
  std::byte* begin;
  std::byte* end;
  std::int64_t skip;  // bytes from a multiple of its element size to the first element
};

Extent extent_of(const tilewise_tensor& tensor, bool written) {
  const std::int64_t size = problem::dtype_size(tensor.dtype);
  std::byte* const data = static_cast<std::byte*>(tensor.data);
  const std::uintptr_t skip =
      reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size);
  Extent extent = {written, data, data, static_cast<std::int64_t>(skip)};
  for (int d = 0; d < tensor.rank; ++d) {
    const std::int64_t reach = tensor.shape[d] > 1 ? (tensor.shape[d] - 1) * tensor.strides[d] : 0;
    (reach < 0 ? extent.begin : extent.end) += reach * size;
  }
  extent.end += size;
  return extent;
}

// Returns the extents of all tensors with elements; extents that overlap are merged.
std::vector<Extent> merged_extents(problem::Operation operation, const tilewise_problem& request) {
  std::vector<Extent> extents;
  for (const problem::NamedTensor& named : problem::kTensors) {
    const tilewise_tensor& tensor = request.*named.member;
    const problem::Role role = named.role(operation);
    if (role == problem::Role::kUnused || element_count(tensor) == 0) continue;
    extents.push_back(extent_of(tensor, problem::is_written(role)));
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  std::vector<Extent> merged;
  for (const Extent& extent : extents) {
    if (!merged.empty() && extent.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, extent.end);
      merged.back().written |= extent.written;
    } else {
      merged.push_back(extent);
    }
  }
  return merged;
}

// Returns the pieces of an extent to copy, as offsets: all of it or, if the extent is too large for
// that, the blocks that hold an element.
std::vector<Piece> pieces_of(const Extent& extent, problem::Operation operation,
                             const tilewise_problem& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  constexpr std::int64_t kBlock = 1 << 16;
  const std::int64_t bytes = extent.end - extent.begin;
  if (bytes <= kLargest) return {{0, bytes}};
  std::set<std::int64_t> blocks;
  for (const problem::NamedTensor& named : problem::kTensors) {
    const tilewise_tensor& tensor = request.*named.member;
    if (named.role(operation) == problem::Role::kUnused || element_count(tensor) == 0) continue;
    const Extent own = extent_of(tensor, false);
    if (own.begin < extent.begin || own.end > extent.end) continue;
    const std::int64_t size = problem::dtype_size(tensor.dtype);
    const std::int64_t first = static_cast<std::byte*>(tensor.data) - extent.begin;
    for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
      blocks.insert((first + offset * size) / kBlock);
      blocks.insert((first + (offset + 1) * size - 1) / kBlock);
    });
  }
  std::vector<Piece> pieces;
  pieces.reserve(blocks.size());
  for (const std::int64_t block : blocks) {
    pieces.push_back({block * kBlock, std::min(kBlock, bytes - block * kBlock)});
  }
  return pieces;
}

}  // namespace

DeviceMemory::DeviceMemory(std::int32_t device, std::int64_t bytes) : device_(device) {
  void* memory = nullptr;
  check(cuda::allocate(device, bytes, nullptr, &memory));
  data_ = static_cast<std::byte*>(memory);
  check(cuda::fill(device, data_, kPoison, bytes, nullptr));
}

DeviceMemory::~DeviceMemory() { cuda::release(device_, data_, nullptr); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}

DeviceCopy::DeviceCopy(problem::Operation operation, const tilewise_problem& request,
                       std::int32_t device)
    : device_(device), twin_(request) {
  for (const Extent& extent : merged_extents(operation, request)) {
    const std::int64_t bytes = extent.end - extent.begin;
    DeviceMemory memory(device, bytes + 2 * kGuardBytes + extent.skip);
    std::byte* const first = memory.data() + kGuardBytes + extent.skip;
    regions_.push_back({extent.written, extent.begin, bytes, std::move(memory), first,
                        pieces_of(extent, operation, request)});
  }
  send();
  for (const problem::NamedTensor& named : problem::kTensors) {
    tilewise_tensor& tensor = twin_.*named.member;
    if (!problem::present(tensor)) continue;
    tensor.device = TILEWISE_CUDA;
    tensor.device_index = device;
    std::byte* const host = static_cast<std::byte*>(tensor.data);
    tensor.data = nullptr;
    for (const Region& region : regions_) {
      if (host < region.host || host >= region.host + region.bytes) continue;
      tensor.data = region.first + (host - region.host);
    }
  }
}

void DeviceCopy::send() {
  for (const Region& region : regions_) {
    for (const Piece& piece : region.pieces) {
      check(cuda::copy(device_, region.first + piece.offset, region.host + piece.offset,
                       piece.bytes, nullptr));
    }
  }
}

std::string DeviceCopy::fetch() {
  std::vector<std::byte> guard(static_cast<std::size_t>(kGuardBytes));
  std::string damage;
  for (const Region& region : regions_) {
    for (const Piece& piece : region.pieces) {
      if (!region.written) break;
      check(cuda::copy(device_, region.host + piece.offset, region.first + piece.offset,
                       piece.bytes, nullptr));
    }
    for (const std::byte* guard_start : {region.first - kGuardBytes, region.first + region.bytes}) {
      check(cuda::copy(device_, guard.data(), guard_start, kGuardBytes, nullptr));
      const bool intact = std::all_of(guard.begin(), guard.end(),
                                      [](std::byte b) { return b == std::byte{kPoison}; });
      if (!intact) damage = "device memory around a tensor was overwritten";
    }
  }
  return damage;
}

bool DeviceCopy::inputs_are_intact() const {
  std::vector<std::byte> now;
  for (const Region& region : regions_) {
    for (const Piece& piece : region.pieces) {
      if (region.written) break;
      now.resize(static_cast<std::size_t>(piece.bytes));
      check(cuda::copy(device_, now.data(), region.first + piece.offset, piece.bytes, nullptr));
      if (!std::equal(now.begin(), now.end(), region.host + piece.offset)) return false;
    }
  }
  return true;
}

CopiedRun run_on_device(problem::Operation operation, const tilewise_problem& request,
                        const plan::Options& options, int fill) {
  constexpr std::int32_t kDevice = 0;
  DeviceCopy copy(operation, request, kDevice);
  plan::Plan plan;
  CopiedRun result;
  result.status = plan::make_plan(operation, copy.request(), options, &plan);
  if (result.status != TILEWISE_OK) return result;
  const std::int64_t bytes = plan.workspace_bytes;
  const DeviceMemory workspace(kDevice, bytes + kGuardBytes);
  check(cuda::fill(kDevice, workspace.data(), fill, bytes, nullptr));
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = static_cast<std::size_t>(bytes);
  run.traffic = &result.traffic;
  result.predicted_bytes = plan.kernel->predicted_traffic(plan.problem, plan.concurrency, 0);
  result.status = plan::run_plan(plan, copy.request(), run);
  if (result.status != TILEWISE_OK) return result;
  result.status = cuda::synchronise(kDevice, nullptr);
  if (result.status != TILEWISE_OK) return result;
  result.damage = copy.fetch();
  if (!copy.inputs_are_intact()) result.damage = "an input was overwritten";
  std::vector<std::byte> guard(static_cast<std::size_t>(kGuardBytes));
  check(cuda::copy(kDevice, guard.data(), workspace.data() + bytes, kGuardBytes, nullptr));
  if (!std::all_of(guard.begin(), guard.end(),
                   [](std::byte b) { return b == std::byte{kPoison}; })) {
    result.damage = "wrote beyond its workspace";
  }
  return result;
}

}  // namespace tilewise::verify
