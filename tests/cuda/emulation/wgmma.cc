#include "cuda/emulation/wgmma.h"

#include <algorithm>
#include <cstring>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/work.h"
#include "math/integer.h"

namespace tilewise::emulation {
namespace {

// The index in the sums (64, width) of register r of a lane.
std::size_t sum_index(std::size_t lane, std::size_t r, int width) {
  const std::size_t row = lane / 32 * 16 + lane % 32 / 4 + r / 2 % 2 * 8;
  const std::size_t column = r / 4 * 8 + lane % 4 * 2 + r % 2;
  return row * static_cast<std::size_t>(width) + column;
}

// The row and the column in a left operand of fp8 of byte `byte` of register r of a lane (PTX ISA
// 9.7.15.5.1, the fragment of A for .e4m3 and .e5m2).
std::size_t fp8_left_index(std::size_t lane, std::size_t r, std::size_t byte) {
  const std::size_t row = lane / 32 * 16 + lane % 32 / 4 + r % 2 * 8;
  const std::size_t column = r / 2 * 16 + lane % 4 * 4 + byte;
  return row * static_cast<std::size_t>(depth_of(WgmmaType::kE4M3)) + column;
}

// A lane's registers of a left operand as floats.
void read_left(const std::array<std::uint32_t, 4>& registers, std::size_t lane, WgmmaType type,
               float* left) {
  for (std::size_t r = 0; r < registers.size(); ++r) {
    if (bytes_of(type) == 1) {
      for (std::size_t byte = 0; byte < 4; ++byte) {
        const std::uint32_t bits = registers[r] >> byte * 8 & 0xFF;
        left[fp8_left_index(lane, r, byte)] = number(bits, type);
      }
    } else {
      for (std::size_t half = 0; half < 2; ++half) {
        const std::uint32_t bits = registers[r] >> half * 16 & 0xFFFF;
        left[sum_index(lane, 2 * r + half, depth_of(type))] = number(bits, type);
      }
    }
  }
}

std::size_t registers_of(int width) { return static_cast<std::size_t>(width) / 2; }

bool is_poison(const float* registers, std::size_t count) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(registers);
  return std::all_of(bytes, bytes + count * sizeof(float),
                     [](unsigned char byte) { return byte == poison(); });
}

bool same_but_registers(const WgmmaOp& a, const WgmmaOp& b) {
  return a.width == b.width && a.left_type == b.left_type && a.right_type == b.right_type &&
         a.add == b.add && a.transposed == b.transposed &&
         (a.left == nullptr) == (b.left == nullptr) && a.left_descriptor == b.left_descriptor &&
         a.right_descriptor == b.right_descriptor;
}

}  // namespace

WgmmaQueue::Warpgroup& WgmmaQueue::own() {
  if (warpgroups_.empty()) {
    const int threads = machine().launch.threads;
    warpgroups_.resize(static_cast<std::size_t>(math::ceil_div(threads, kGroupThreads)));
  }
  return warpgroups_[threadIdx.x / kGroupThreads];
}

void WgmmaQueue::fence() { own().lanes[threadIdx.x % kGroupThreads].fenced = true; }

void WgmmaQueue::add(const WgmmaOp& product) {
  Lane& lane = own().lanes[threadIdx.x % kGroupThreads];
  if (!lane.fenced) fail("wgmma.mma_async: no wgmma.fence since the last group");
  constexpr int kRows = 64;
  work.multiply_adds += kRows * product.width * depth_of(product.left_type) / kGroupThreads;
  Pending pending = {product, {}};
  if (product.left != nullptr) std::memcpy(pending.left.data(), product.left, sizeof(pending.left));
  lane.pending.push_back(pending);
}

void WgmmaQueue::commit() { meet_warpgroup(perform_commit, &own()); }

void WgmmaQueue::perform_commit(const GroupRequests& requests) {
  Warpgroup& warpgroup = *static_cast<Warpgroup*>(requests[0]);
  // The group is built in its final position: fail() does not return, and would leak memory of a
  // local one.
  Group& group = warpgroup.groups.emplace_back();
  group.number = warpgroup.committed++;
  for (std::size_t lane = 0; lane < kGroupThreads; ++lane) {
    group.pending[lane].swap(warpgroup.lanes[lane].pending);
    warpgroup.lanes[lane].fenced = false;
    if (group.pending[lane].size() != group.pending[0].size())
      fail("wgmma.commit_group: not all lanes have the same products");
  }
  for (std::size_t which = 0; which < group.pending[0].size(); ++which)
    start(warpgroup, group, which);
}

WgmmaQueue::Sums& WgmmaQueue::sums_of(Warpgroup& warpgroup, const Group& group, std::size_t which) {
  const WgmmaOp& first = group.pending[0][which].product;
  const auto registers_at = [&](std::size_t lane) {
    return group.pending[lane][which].product.sums;
  };
  for (Sums& sums : warpgroup.sums) {
    if (sums.registers[0] != first.sums || sums.width != first.width) continue;
    for (std::size_t lane = 0; lane < kGroupThreads; ++lane) {
      if (sums.registers[lane] != registers_at(lane))
        fail("wgmma.mma_async: lanes name different registers");
    }
    return sums;
  }
  Sums sums = {first.width, 0, {}, {}};
  sums.values.resize(std::size_t{kWgmmaRows} * static_cast<std::size_t>(first.width));
  for (std::size_t lane = 0; lane < kGroupThreads; ++lane) {
    float* const registers = registers_at(lane);
    sums.registers[lane] = registers;
    const std::size_t count = registers_of(first.width);
    for (std::size_t r = 0; r < count; ++r)
      sums.values[sum_index(lane, r, first.width)] = registers[r];
    std::memset(registers, poison(), count * sizeof(float));
  }
  warpgroup.sums.push_back(std::move(sums));
  return warpgroup.sums.back();
}

void WgmmaQueue::start(Warpgroup& warpgroup, Group& group, std::size_t which) {
  const WgmmaOp& product = group.pending[0][which].product;
  for (const auto& pending : group.pending) {
    if (!same_but_registers(pending[which].product, product))
      fail("wgmma.mma_async: lanes ask for different products");
  }
  const int depth = depth_of(product.left_type);
  float left[kWgmmaRows * kMaxWgmmaDepth];
  if (product.left != nullptr) {
    for (std::size_t lane = 0; lane < kGroupThreads; ++lane)
      read_left(group.pending[lane][which].left, lane, product.left_type, left);
  } else if (product.transposed) {
    float columns[kMaxWgmmaDepth * kWgmmaRows];
    read_columns(product.left_descriptor, kWgmmaRows, product.left_type, columns, group.read);
    for (int i = 0; i < depth * kWgmmaRows; ++i)
      left[i % kWgmmaRows * depth + i / kWgmmaRows] = columns[i];
  } else {
    read_rows(product.left_descriptor, kWgmmaRows, product.left_type, left, depth, 1, group.read);
  }
  float right[kMaxWgmmaDepth * kMaxColumns];
  if (product.transposed) {
    read_columns(product.right_descriptor, product.width, product.right_type, right, group.read);
  } else {
    read_rows(product.right_descriptor, product.width, product.right_type, right, 1, product.width,
              group.read);
  }
  Sums& sums = sums_of(warpgroup, group, which);
  sums.group = group.number;
  if (!product.add) std::fill(sums.values.begin(), sums.values.end(), 0.0f);
  multiply_add(sums.values.data(), left, right, product.width, depth);
}

void WgmmaQueue::wait(int groups) {
  Warpgroup& warpgroup = own();
  const std::size_t warp = threadIdx.x % kGroupThreads / kWarpThreads;
  while (warpgroup.committed - warpgroup.finished[warp] > groups) {
    ++warpgroup.waiting[warp];
    wait_for(&warpgroup.waiting[warp], "waits for its products but for",
             static_cast<std::uint32_t>(groups));
  }
}

void WgmmaQueue::check_waited_for(const float* registers) {
  for (const Sums& sums : own().sums) {
    if (sums.registers[threadIdx.x % kGroupThreads] == registers)
      fail("the results of a product are read before a wait for it");
  }
}

void WgmmaQueue::complete_group(Warpgroup& warpgroup, std::size_t warp) {
  const std::size_t index = static_cast<std::size_t>(
      warpgroup.finished[warp] - (warpgroup.committed - static_cast<int>(warpgroup.groups.size())));
  const Group& group = warpgroup.groups[index];
  for (const ReadSegment& segment : group.read) {
    if (block().shared.segment(segment.number).changes != segment.changes)
      record("wgmma.mma_async: what a product reads in shared memory has changed before its end");
  }
  for (std::size_t lane = warp * kWarpThreads; lane < (warp + 1) * kWarpThreads; ++lane) {
    for (const Pending& pending : group.pending[lane]) {
      if (pending.product.left != nullptr &&
          std::memcmp(pending.product.left, pending.left.data(), sizeof(pending.left)) != 0)
        record("wgmma.mma_async: registers that a product reads have changed before its end");
    }
    for (Sums& sums : warpgroup.sums) {
      if (sums.group != group.number) continue;
      float* const registers = sums.registers[lane];
      const std::size_t count = registers_of(sums.width);
      if (!is_poison(registers, count))
        record("wgmma.mma_async: the registers of its sums were written before its end");
      for (std::size_t r = 0; r < count; ++r)
        registers[r] = sums.values[sum_index(lane, r, sums.width)];
      sums.registers[lane] = nullptr;
    }
  }
  ++warpgroup.finished[warp];
  const int all = *std::min_element(warpgroup.finished.begin(), warpgroup.finished.end());
  if (group.number >= all) return;
  std::erase_if(warpgroup.sums, [&](const Sums& sums) { return sums.group < all; });
  warpgroup.groups.pop_front();
}

bool WgmmaQueue::complete_one() {
  struct WaitingWarp {
    Warpgroup* warpgroup;
    std::size_t warp;
  };
  std::vector<WaitingWarp> waiting;
  for (Warpgroup& warpgroup : warpgroups_) {
    for (std::size_t warp = 0; warp < kGroupWarps; ++warp) {
      if (warpgroup.waiting[warp] == kWarpThreads) waiting.push_back({&warpgroup, warp});
    }
  }
  if (waiting.empty()) return false;
  Machine& m = machine();
  const WaitingWarp chosen = waiting[m.shuffles ? m.random() % waiting.size() : 0];
  complete_group(*chosen.warpgroup, chosen.warp);
  chosen.warpgroup->waiting[chosen.warp] = 0;
  wake(&chosen.warpgroup->waiting[chosen.warp]);
  return true;
}

bool WgmmaQueue::idle() const {
  return std::all_of(warpgroups_.begin(), warpgroups_.end(), [](const Warpgroup& warpgroup) {
    return warpgroup.groups.empty() &&
           std::all_of(warpgroup.lanes.begin(), warpgroup.lanes.end(),
                       [](const Lane& lane) { return lane.pending.empty(); });
  });
}

}  // namespace tilewise::emulation
