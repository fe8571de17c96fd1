// Distributed attention for C++20: a header-only layer over tilewise_distributed.h with RAII and
// exceptions. It adds no behaviour of its own.
//
//   tilewise::DistributedOptions options;
//   options.q_len = options.k_len = 65536;
//   options.schedule = tilewise::distributed_schedule(problem, options, communicator.size);
//   // ... this rank's rows: tilewise::tokens_of(options.schedule, 65536, size, rank)
//   tilewise::forward(problem, options, communicator);  // throws tilewise::Error, on every rank
#ifndef TILEWISE_TILEWISE_DISTRIBUTED_HPP_
#define TILEWISE_TILEWISE_DISTRIBUTED_HPP_

#include <tilewise/tilewise_distributed.h>

#include <array>
#include <tilewise/tilewise.hpp>

namespace tilewise {

enum class Schedule : std::int32_t {
  kAutomatic = TILEWISE_SCHEDULE_AUTOMATIC,
  kContiguous = TILEWISE_SCHEDULE_CONTIGUOUS,
  kZigzag = TILEWISE_SCHEDULE_ZIGZAG,
  kStriped = TILEWISE_SCHEDULE_STRIPED,
  kBalanced = TILEWISE_SCHEDULE_BALANCED
};

// A group of ranks in one process, each a thread.
class LocalGroup {
 public:
  explicit LocalGroup(std::int32_t size) {
    tilewise_local_group* group = nullptr;
    check(tilewise_local_group_create(size, &group));
    group_.reset(group);
  }
  // Of tensors of CUDA devices: rank r has those of device devices[r].
  explicit LocalGroup(std::span<const std::int32_t> devices) {
    tilewise_local_group* group = nullptr;
    check(tilewise_local_group_create_cuda(devices.data(),
                                           static_cast<std::int32_t>(devices.size()), &group));
    group_.reset(group);
  }
  // Returns the communicator of a rank, valid while the group lives.
  tilewise_communicator communicator(std::int32_t rank) const {
    tilewise_communicator communicator;
    check(tilewise_local_group_communicator(group_.get(), rank, &communicator));
    return communicator;
  }

 private:
  struct Destroy {
    void operator()(tilewise_local_group* group) const { tilewise_local_group_destroy(group); }
  };
  std::unique_ptr<tilewise_local_group, Destroy> group_;
};

// A rank of NCCL. See tilewise_nccl_communicator_create.
class NcclCommunicator {
 public:
  using Id = std::array<char, TILEWISE_NCCL_ID_BYTES>;
  static Id unique_id() {
    Id id;
    check(tilewise_nccl_unique_id(id.data()));
    return id;
  }
  NcclCommunicator(const Id& id, std::int32_t size, std::int32_t rank, std::int32_t device_index) {
    tilewise_nccl_communicator* nccl = nullptr;
    check(tilewise_nccl_communicator_create(id.data(), size, rank, device_index, &nccl));
    nccl_.reset(nccl);
  }
  // Uses an ncclComm_t of the caller's.
  explicit NcclCommunicator(void* comm) {
    tilewise_nccl_communicator* nccl = nullptr;
    check(tilewise_nccl_communicator_wrap(comm, &nccl));
    nccl_.reset(nccl);
  }
  // Returns what plans and calls take, valid while this object lives.
  tilewise_communicator communicator() const {
    tilewise_communicator communicator;
    check(tilewise_nccl_communicator_get(nccl_.get(), &communicator));
    return communicator;
  }
  // Throws an error if an exchange has failed so far.
  void check_exchanges() const { check(tilewise_nccl_communicator_status(nccl_.get())); }

 private:
  struct Destroy {
    void operator()(tilewise_nccl_communicator* nccl) const {
      tilewise_nccl_communicator_destroy(nccl);
    }
  };
  std::unique_ptr<tilewise_nccl_communicator, Destroy> nccl_;
};

// See tilewise_token_plan_options.
struct TokenPlanOptions {
  std::int64_t q_len = 0;  // of the whole
  std::int64_t k_len = 0;
  std::int32_t size = 1;        // number of ranks
  std::int64_t chunk_rows = 0;  // 0: automatic
  std::int64_t stages = 0;
};

enum class Side : std::int32_t { kQueries = TILEWISE_QUERIES, kKeys = TILEWISE_KEYS };

// The balanced schedule of a mask: slices, or causal, window and cu_seqlens of a problem.
class TokenPlan {
 public:
  TokenPlan(const tilewise_problem& mask, const TokenPlanOptions& options) {
    tilewise_token_plan_options raw;
    tilewise_token_plan_options_init(&raw);
    raw.q_len = options.q_len;
    raw.k_len = options.k_len;
    raw.size = options.size;
    raw.chunk_rows = options.chunk_rows;
    raw.stages = options.stages;
    tilewise_token_plan* plan = nullptr;
    check(tilewise_token_plan_create(&mask, &raw, &plan));
    plan_.reset(plan);
  }

  const tilewise_token_plan* get() const { return plan_.get(); }
  tilewise_token_plan_info info() const {
    tilewise_token_plan_info info;
    tilewise_token_plan_info_init(&info);
    check(tilewise_token_plan_describe(get(), &info));
    return info;
  }
  tilewise_token_plan_rank_info info_of(std::int32_t rank) const {
    tilewise_token_plan_rank_info info;
    tilewise_token_plan_rank_info_init(&info);
    check(tilewise_token_plan_describe_rank(get(), rank, &info));
    return info;
  }

  // Returns the tokens of a rank as ranges, in the order of its rows. They belong to the plan.
  std::span<const tilewise_token_range> ranges_of(Side side, std::int32_t rank) const {
    const tilewise_token_range* ranges = nullptr;
    std::int64_t count = 0;
    check(
        tilewise_token_plan_ranges(get(), static_cast<std::int32_t>(side), rank, &ranges, &count));
    return {ranges, static_cast<std::size_t>(count)};
  }
  // Returns the positions in the whole of a rank's rows: those of position embeddings.
  std::vector<std::int64_t> tokens_of(Side side, std::int32_t rank) const {
    const tilewise_token_plan_rank_info info = info_of(rank);
    std::vector<std::int64_t> tokens(
        static_cast<std::size_t>(side == Side::kQueries ? info.q_rows : info.k_rows));
    check(
        tilewise_token_plan_positions(get(), static_cast<std::int32_t>(side), rank, tokens.data()));
    return tokens;
  }
  // Copies the rank's rows, of `width` elements each, from the whole, and back to their places.
  template <class T>
  void dispatch(Side side, std::int32_t rank, const T* whole, std::int64_t width, T* rows) const {
    static_assert(std::is_trivially_copyable_v<T>, "Rows are copied as bytes.");
    check(tilewise_token_plan_dispatch(get(), static_cast<std::int32_t>(side), rank, whole,
                                       width * static_cast<std::int64_t>(sizeof(T)), rows));
  }
  template <class T>
  void undispatch(Side side, std::int32_t rank, const T* rows, std::int64_t width, T* whole) const {
    static_assert(std::is_trivially_copyable_v<T>, "Rows are copied as bytes.");
    check(tilewise_token_plan_undispatch(get(), static_cast<std::int32_t>(side), rank, rows,
                                         width * static_cast<std::int64_t>(sizeof(T)), whole));
  }

 private:
  struct Destroy {
    void operator()(tilewise_token_plan* plan) const { tilewise_token_plan_destroy(plan); }
  };
  std::unique_ptr<tilewise_token_plan, Destroy> plan_;
};

// See tilewise_distributed_options.
struct DistributedOptions {
  std::int64_t q_len = 0;  // of the whole
  std::int64_t k_len = 0;
  Schedule schedule = Schedule::kAutomatic;
  double timeout_seconds = 300;
  PlanOptions kernels;
  const TokenPlan* token_plan = nullptr;  // the balanced schedule needs one
};

// Passes the options to the C interface; it points into them.
inline tilewise_distributed_options raw_options(const DistributedOptions& options) {
  tilewise_distributed_options raw;
  tilewise_distributed_options_init(&raw);
  raw.q_len = options.q_len;
  raw.k_len = options.k_len;
  raw.schedule = static_cast<std::int32_t>(options.schedule);
  raw.timeout_seconds = options.timeout_seconds;
  raw.max_concurrency = options.kernels.max_concurrency;
  raw.kernel = options.kernels.kernel.empty() ? nullptr : options.kernels.kernel.c_str();
  raw.cpu_target =
      options.kernels.cpu_target.empty() ? nullptr : options.kernels.cpu_target.c_str();
  raw.token_plan = options.token_plan != nullptr ? options.token_plan->get() : nullptr;
  return raw;
}

// Returns which schedule `automatic` means for a problem on `size` ranks.
inline Schedule distributed_schedule(const Problem& problem, const DistributedOptions& options,
                                     std::int32_t size) {
  const tilewise_distributed_options raw = raw_options(options);
  std::int32_t schedule = 0;
  check(tilewise_distributed_schedule(&problem, &raw, size, &schedule));
  return static_cast<Schedule>(schedule);
}

// Returns the positions in the whole of the tokens that a rank holds, in the order of its rows:
// what to cut from the whole, and the positions of position embeddings.
inline std::vector<std::int64_t> tokens_of(Schedule schedule, std::int64_t length,
                                           std::int32_t size, std::int32_t rank) {
  tilewise_token_range ranges[TILEWISE_MAX_TOKEN_RANGES];
  std::int32_t count = 0;
  check(tilewise_token_ranges(static_cast<std::int32_t>(schedule), length, size, rank, ranges,
                              &count));
  std::vector<std::int64_t> tokens;
  for (std::int32_t r = 0; r < count; ++r) {
    for (std::int64_t token = ranges[r].begin; token < ranges[r].end; token += ranges[r].stride)
      tokens.push_back(token);
  }
  return tokens;
}

// One collective call that allocates the workspace.
inline void forward(const Problem& problem, const DistributedOptions& options,
                    const tilewise_communicator& communicator,
                    const tilewise_executor* executor = nullptr) {
  const tilewise_distributed_options raw = raw_options(options);
  check(tilewise_distributed_forward(&problem, &raw, &communicator, executor));
}
inline void backward(const Problem& problem, const DistributedOptions& options,
                     const tilewise_communicator& communicator,
                     const tilewise_executor* executor = nullptr) {
  const tilewise_distributed_options raw = raw_options(options);
  check(tilewise_distributed_backward(&problem, &raw, &communicator, executor));
}

// A plan of this rank. Making it does not communicate; run() is collective.
class DistributedPlan {
 public:
  DistributedPlan(Operation operation, const Problem& problem, const DistributedOptions& options,
                  const tilewise_communicator& communicator) {
    const tilewise_distributed_options raw = raw_options(options);
    tilewise_distributed_plan* plan = nullptr;
    check(tilewise_distributed_plan_create(static_cast<std::int32_t>(operation), &problem, &raw,
                                           &communicator, &plan));
    plan_.reset(plan);
  }

  // Returns what the plan does on this rank.
  tilewise_distributed_info info() const {
    tilewise_distributed_info info;
    tilewise_distributed_info_init(&info);
    check(tilewise_distributed_plan_info(plan_.get(), &info));
    return info;
  }
  Workspace make_workspace() const {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    check(tilewise_distributed_plan_workspace(plan_.get(), &bytes, &alignment));
    return Workspace(bytes, alignment);
  }
  void run(const Problem& problem, const Workspace& workspace,
           const tilewise_executor* executor = nullptr) const {
    check(tilewise_distributed_plan_run(plan_.get(), &problem, workspace.data(), workspace.bytes(),
                                        executor));
  }

 private:
  struct Destroy {
    void operator()(tilewise_distributed_plan* plan) const {
      tilewise_distributed_plan_destroy(plan);
    }
  };
  std::unique_ptr<tilewise_distributed_plan, Destroy> plan_;
};

}  // namespace tilewise

#endif  // TILEWISE_TILEWISE_DISTRIBUTED_HPP_
