// The plan of ring attention for one rank: the calls of kernels and the messages of every step.
// In step t a rank computes with the keys of the rank t before it, while the keys of the next step
// and, backward, the gradients of the last one are on their way.
#pragma once

#include <memory>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/fingerprint.h"
#include "distributed/route.h"
#include "plan/plan.h"

namespace tilewise::distributed {

struct RingOptions {
  Lengths lengths = {0, 0};
  Schedule schedule = Schedule::kAutomatic;
  double timeout_seconds = 300;
  plan::Options kernels;
};

// A call of a kernel: ranges of the rank's queries with pieces of another rank's keys, mostly one
// of each.
struct Call {
  std::int32_t query_range = 0;
  std::int32_t query_ranges = 1;    // that follow each other
  std::int32_t piece = 0;           // of the step
  std::int32_t pieces = 1;          // that follow each other
  bool begins = false;              // writes its results: no call of its ranges came before
  bool with_sink = false;           // the one call of the range that passes the sink
  std::size_t kernel = 0;           // index into RingPlan::kernels
  std::int64_t first_sequence = 0;  // of the whole
  std::int64_t sequences = 0;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  // The begin of each of its lists in RingPlan::lists; -1 for those that it does not need. Without
  // `parts` the diagonal of every sequence begins at its first row and key, or there is none.
  std::int64_t parts = -1;
  std::int64_t cu_seqlens_q = -1;
  std::int64_t cu_seqlens_k = -1;
  std::int64_t seqused_q = -1;
  std::int64_t seqused_k = -1;

  bool has_range(std::int32_t range) const {
    return range >= query_range && range < query_range + query_ranges;
  }
};

// A range of indices.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct Step {
  std::int32_t owner = 0;  // of the keys
  Pieces pieces;
  Span calls;
};

// Arrays of rows that messages come from and go to.
enum class Buffer {
  kOwnKeys,     // K and V of this rank
  kKeys0,       // those of steps with an even number
  kKeys1,       // and with an odd one
  kGradients0,  // dK and dV of the step's pieces
  kGradients1,
  kPartial,  // those that the rank before this one has computed
  kHome      // those of this rank's keys that other ranks have computed
};

struct Transfer {
  Buffer buffer = Buffer::kOwnKeys;
  std::int64_t row = 0;  // of the buffer
  std::int64_t rows = 0;
  std::int64_t target = 0;  // received gradients: the row of the sum that they are added to
  std::int32_t peer = 0;
  std::int32_t tag = 0;
};

// The exchange and the step that overlap: the step has the same number, if there is one.
struct Stage {
  Span sends;
  Span receives;
};

// Offsets into the workspace; -1 for arrays that are not needed.
struct RingMemory {
  std::int64_t comparison = -1;
  std::int64_t own_keys = -1;
  std::int64_t keys[2] = {-1, -1};
  std::int64_t gradients[2] = {-1, -1};
  std::int64_t partial = -1;
  std::int64_t home = -1;
  std::int64_t out = -1;  // fp32 (fp64) sums, of outputs that have another dtype
  std::int64_t lse = -1;
  std::int64_t dq = -1;
  std::int64_t dk = -1;
  std::int64_t dv = -1;
  std::int64_t head_sums = -1;  // of all ranks: dsink and dalibi_slopes
  std::int64_t lists = -1;      // a copy of RingPlan::lists, for kernels of a device
  std::int64_t kernels = -1;    // the workspace of the kernels
  std::int64_t bytes = 0;
};

struct RingPlan {
  RingOptions options;  // the schedule is not automatic
  std::int32_t rank = 0;
  std::int32_t size = 1;
  problem::Operation operation = problem::Operation::kForward;
  problem::Problem local;     // the problem of this rank; its pointers are unused
  tilewise_tensor bias = {};  // with the rank's rows and all columns
  tilewise_tensor mask = {};
  tilewise_tensor dbias = {};
  Whole whole;
  std::uint64_t lists_hash = 0;  // of cu_seqlens and seqused
  Shard queries;
  Shard keys;

  std::vector<Step> steps;  // (size)
  std::vector<Call> calls;
  std::vector<Stage> stages;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<plan::Plan> kernels;
  std::vector<std::int64_t> lists;
  RingMemory memory;
  std::shared_ptr<Agreement> agreement;  // of a device

  Ring ring() const { return {&whole, options.schedule, options.lengths, size}; }
  bool backward() const { return operation == problem::Operation::kBackward; }
  std::int64_t query_rows(const Call& call) const;  // of its ranges
  bool on_device() const { return local.device == TILEWISE_CUDA; }
  bool key_gradients() const { return local.dk.present() || local.dv.present(); }

  // A row of keys is a record: K of every batch and head, then V. A row of gradients has dK, then
  // dV, in fp32 (fp64), without those that are absent.
  std::int64_t key_batch() const { return local.k_packed ? 1 : local.batch; }
  std::int64_t key_columns() const;
  std::int64_t value_columns() const;
  std::int64_t gradient_columns() const;
  std::int64_t key_bytes() const;       // of a row
  std::int64_t gradient_bytes() const;  // of a row
  std::int64_t row_bytes(Buffer buffer) const;
  // The numbers of this rank in head_sums: dsink (H), then dalibi_slopes (B, H) or (H).
  std::int64_t sink_count() const;
  std::int64_t slope_count() const;
};

// Makes the plan of a rank. It does not communicate.
Status make_ring_plan(problem::Operation operation, const tilewise_problem& request,
                      const RingOptions& options, std::int32_t rank, std::int32_t size,
                      RingPlan* plan);

// Describes the plan in `info`; info->struct_size stays.
void describe_ring_plan(const RingPlan& plan, tilewise_distributed_info* info);

// The steps of making a plan, in files of their own.
void plan_transfers(RingPlan& plan);  // stages, sends and receives
void plan_calls(RingPlan& plan);      // steps and calls, without their kernels
Status plan_kernels(const tilewise_problem& request, RingPlan& plan);
Status plan_memory(RingPlan& plan);

}  // namespace tilewise::distributed
