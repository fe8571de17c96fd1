// Attention with the mask of a plan (plan.h) over the ranks of a communicator. Each rank passes its
// rows of the token axes, packed, and gets its rows of the results, those of one machine that holds
// everything.
//
// Keys and values travel by group-cast: in every stage each rank receives exactly the rows that its
// queries see, while it computes with those of the stage before. The parts accumulate in fp32
// (fp64) in the kernels. The backward pass receives the same rows again and sends dK and dV of them
// back to their owners, in fp32 (fp64): group-reduce. Sums are in a fixed order, so the bits are
// the same from run to run.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <memory>

#include "distributed/agreement.h"
#include "distributed/fingerprint.h"
#include "distributed/magi/rank_plan.h"
#include "plan/plan.h"

namespace tilewise::distributed::magi {

struct AttentionOptions {
  double timeout_seconds = 300;  // of an exchange
  plan::Options kernels;
};

// A call of a kernel: the rank's queries with the keys of one stage.
struct StageCall {
  bool needed = false;  // false: no key arrives
  plan::Plan kernel;
};

// Offsets into the workspace; -1 for arrays that are not needed.
struct AttentionMemory {
  std::int64_t comparison = -1;
  std::int64_t messages = -1;
  std::int64_t keys = -1;  // of one stage: rows of K and V
  std::int64_t keys_sent = -1;
  std::int64_t keys_received = -1;
  std::int64_t gradients = -1;  // of the same rows
  std::int64_t gradients_sent = -1;
  std::int64_t gradients_received = -1;
  std::int64_t out = -1;  // sums in fp32 (fp64) of outputs that have another dtype
  std::int64_t lse = -1;
  std::int64_t dq = -1;
  std::int64_t dk = -1;
  std::int64_t dv = -1;
  std::int64_t dsink = -1;   // of all ranks
  std::int64_t slices = -1;  // a copy of those of all stages, for kernels of a device
  std::int64_t kernels = -1;
  std::int64_t bytes = 0;
};

// A plan of an operation on one rank, for any number of runs.
struct Attention {
  problem::Operation operation = problem::Operation::kForward;
  AttentionOptions options;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::int64_t area = 0;   // of this rank
  problem::Problem local;  // of this rank with its own keys; its pointers are unused
  Lengths lengths = {0, 0};
  std::uint64_t plan_hash = 0;
  RankPlan stages;
  std::vector<StageCall> calls;  // by the stages
  AttentionMemory memory;
  std::shared_ptr<Agreement> agreement;  // of a device

  bool on_device() const { return local.device == TILEWISE_CUDA; }
  // Messages of an exchange: keys and gradients of two stages are on their way at a time, and sums
  // of dsink to every rank.
  std::int64_t most_messages() const;

  bool backward() const { return operation == problem::Operation::kBackward; }
  bool key_gradients() const { return local.dk.present() || local.dv.present(); }
  std::int64_t last_stage() const { return static_cast<std::int64_t>(stages.stages.size()) - 1; }
  // Elements of a row of keys: K of every head, then V; of a row of gradients likewise.
  std::int64_t key_columns() const { return local.kv_heads * local.head_dim; }
  std::int64_t row_columns() const { return key_columns() + local.kv_heads * local.value_dim; }
  std::int64_t row_bytes() const;
  std::int64_t gradient_row_bytes() const;
};

// Makes the plan of a rank. `request` comes from packed_request() (request.h): q, out, lse, dout,
// dlse, dq with the rows plan.queries[rank], and k, v, dk, dv with the rows plan.keys[rank], in the
// order of the ranges. The sink is the same on all ranks, and dsink gets the gradient of the whole
// on each. Does not communicate; keeps no reference.
problem::Status make_attention(problem::Operation operation, const tilewise_problem& request,
                               const Plan& plan, std::int32_t rank, const AttentionOptions& options,
                               Attention* attention);

// Describes the plan in `info`; info->struct_size stays.
void describe_attention(const Attention& attention, tilewise_distributed_info* info);

struct AttentionRun {
  void* workspace = nullptr;  // memory.bytes, aligned to problem::kWorkspaceAlignment
  std::size_t workspace_bytes = 0;
  const tilewise_executor* executor = nullptr;  // nullptr: the default pool
};

// Runs the plan on tensors of the planned shapes; every rank of the communicator does. First all
// ranks compare their problems and plans: if one differs or is refused, every rank returns
// TILEWISE_INVALID_ARGUMENT with a message that names it, and the communicator remains usable. If a
// rank fails later, all ranks return a status other than TILEWISE_OK, and outputs are undefined.
// Starts one thread for the communication if the communicator allows it. A rank whose request
// make_attention() has refused calls refuse() (agreement.h) instead.
problem::Status run_attention(const Attention& attention, const tilewise_communicator& communicator,
                              const tilewise_problem& request, const AttentionRun& run);

// Returns the problem of a stage: the packed request with the stage's keys, slices and sums, which
// lie in the workspace where the request has no tensor for them. All addresses are null without a
// workspace.
tilewise_problem stage_problem(const Attention& attention, const tilewise_problem& request,
                               std::int64_t stage, void* workspace);

}  // namespace tilewise::distributed::magi
