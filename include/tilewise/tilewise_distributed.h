/* Tilewise on several machines or processes: exact attention over a sequence that is divided
 * between ranks. The C interface (C99).
 *
 * Every rank holds some tokens of the queries and some of the keys and values. Ring attention (Liu,
 * Zaharia and Abbeel, 2023) sends keys and values around the ranks while each computes with those
 * that it has; the results are those of one machine that holds everything. docs/distributed.md
 * describes schedules, what is sent, and failures.
 *
 *   tilewise_distributed_options options;
 *   tilewise_distributed_options_init(&options);
 *   options.q_len = options.k_len = 65536;   the whole sequence; `problem` has this rank's tokens
 *   tilewise_distributed_forward(&problem, &options, &communicator, NULL);
 *
 * A mask that positions do not balance, such as a list of slices, gets a token plan first, which
 * says which tokens each rank holds (token plans, below). Then options.token_plan = plan, and the
 * calls are the same.
 *
 * All functions of this header that communicate are collective: every rank of the communicator
 * calls them, in the same order.
 */
#ifndef TILEWISE_TILEWISE_DISTRIBUTED_H_
#define TILEWISE_TILEWISE_DISTRIBUTED_H_

#include <tilewise/tilewise.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- communicators ---------------------------------------------------------------------- */

typedef struct tilewise_message {
  void* data; /* of a send: only read */
  int64_t bytes;
  int32_t peer; /* the rank that it goes to or comes from */
  int32_t tag;  /* 0 to 32766; a receive takes the message of its peer that has its tag */
} tilewise_message;

/* Messages that are sent and received together. Messages with the same peer and tag are matched in
 * order; a message has the size that its receiver expects. */
typedef struct tilewise_exchange {
  const tilewise_message* sends;
  const tilewise_message* receives;
  int32_t send_count;
  int32_t receive_count;
  double timeout_seconds; /* > 0; INFINITY: no limit */
} tilewise_exchange;

/* A group of ranks 0 to size - 1 that exchange messages, like tilewise_executor a struct of
 * function pointers: the library has engines for threads of one process and for NCCL (below) and
 * for MPI (tilewise_mpi.h), and a program may have its own.
 *
 * exchange() returns when every message of the request has been sent and received, or when it
 * failed: TILEWISE_TIMEOUT if that took longer than the time limit, TILEWISE_REMOTE_ERROR if
 * another rank has failed, TILEWISE_INVALID_ARGUMENT if a message has another size than its
 * receiver expects. Then *failed_rank is the rank that caused the failure, as far as the engine
 * knows: the one that does not answer, not the one that waits for it. After a failure every further
 * exchange of every rank fails, and nothing is written to the memory of the request any more.
 * Nothing is read either, unless reads_after_failure says so.
 *
 * abort() makes the exchanges of all other ranks fail, with this rank as the cause.
 *
 * An engine for tensors of a CUDA device also has start() and finish(), whose messages lie in that
 * device's memory. start() begins an exchange that comes after the work that `stream` (a
 * cudaStream_t of the device) has been given so far. finish(), which follows each start(), makes
 * the later work of `stream` come after the messages. Neither waits for the device; finish() waits
 * until the other ranks have begun the same exchange, if the engine needs that. The request stays
 * as it is between them. exchange() still takes host memory.
 *
 * A rank makes one call at a time. */
typedef struct tilewise_communicator {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  int32_t calls_from_any_thread; /* 1: another thread than the creator's may call exchange(), and
                                    communication overlaps with computation */
  int32_t reads_after_failure;   /* 1: after a failure the engine may read messages that it could
                                    not cancel, until the process ends */
  void* self;
  tilewise_status (*exchange)(void* self, const tilewise_exchange* request, int32_t* failed_rank);
  void (*abort)(void* self);
  /* NULL if the engine takes host memory only. */
  tilewise_status (*start)(void* self, const tilewise_exchange* request, void* stream,
                           int32_t* failed_rank);
  tilewise_status (*finish)(void* self, void* stream, int32_t* failed_rank);
  int32_t device_index; /* the CUDA device whose memory start() takes */
  int32_t reserved;     /* 0 */
} tilewise_communicator;

/* Sets the thread's message, as an engine does before it returns a failure, and returns `status`.
 * The message is cut at 511 characters. */
TILEWISE_API tilewise_status tilewise_fail(tilewise_status status, const char* message);

/* A group of ranks in one process: each rank is a thread. A message is copied once, from the
 * sender's memory to the receiver's. `size` is 1 to 4096. */
typedef struct tilewise_local_group tilewise_local_group;
TILEWISE_API tilewise_status tilewise_local_group_create(int32_t size,
                                                         tilewise_local_group** group);
TILEWISE_API void tilewise_local_group_destroy(tilewise_local_group* group); /* NULL is allowed */

/* The same for tensors of CUDA devices: rank r has those of device devices[r], and several ranks
 * may share one. Each rank has a stream of its own, on which messages are copied from device to
 * device while it computes. The devices get access to each other's memory where they can
 * (cudaDeviceEnablePeerAccess, and cudaMemPoolSetAccess of their default pools). */
TILEWISE_API tilewise_status tilewise_local_group_create_cuda(const int32_t* devices, int32_t size,
                                                              tilewise_local_group** group);

/* Sets `communicator` to that of a rank. It is valid while the group lives. */
TILEWISE_API tilewise_status tilewise_local_group_communicator(tilewise_local_group* group,
                                                               int32_t rank,
                                                               tilewise_communicator* communicator);

/* Ranks whose tensors are on CUDA devices, over NVIDIA's NCCL. The library is loaded when the first
 * of these functions is called: the file that the variable TILEWISE_NCCL_LIBRARY names, or
 * libnccl.so.2. Without it they return TILEWISE_UNSUPPORTED.
 *
 * Messages are sent and received on a stream of the communicator's own, while the caller's stream
 * computes. Runs return when everything has been started. A thread watches what is under way: if an
 * exchange has not ended within its time limit after the work before it, or NCCL reports an error,
 * the communicator is aborted (ncclCommAbort), so that streams do not wait for ever. Results of
 * runs since are then undefined; later calls, and tilewise_nccl_communicator_status(), say so. */
enum { TILEWISE_NCCL_ID_BYTES = 128 };
typedef struct tilewise_nccl_communicator tilewise_nccl_communicator;

/* Writes an id (ncclUniqueId) that one rank makes and gives to all others. */
TILEWISE_API tilewise_status tilewise_nccl_unique_id(void* id);

/* Joins the ranks that have the same id. Collective: it returns when all `size` ranks have called
 * it. Each rank has a device of its own. */
TILEWISE_API tilewise_status tilewise_nccl_communicator_create(const void* id, int32_t size,
                                                               int32_t rank, int32_t device_index,
                                                               tilewise_nccl_communicator** nccl);

/* Uses the caller's ncclComm_t, which must be a blocking one, outlive this communicator, and be
 * used by one of the two at a time. It is not destroyed, but aborted after a failure. */
TILEWISE_API tilewise_status tilewise_nccl_communicator_wrap(void* comm,
                                                             tilewise_nccl_communicator** nccl);

/* Waits for exchanges that are under way. NULL is allowed. */
TILEWISE_API void tilewise_nccl_communicator_destroy(tilewise_nccl_communicator* nccl);

/* TILEWISE_OK unless an exchange has failed so far; otherwise the failure, with its message. After
 * the caller's stream has been waited for, this says whether its results are valid. */
TILEWISE_API tilewise_status tilewise_nccl_communicator_status(tilewise_nccl_communicator* nccl);

/* Sets `communicator` to one for the functions below. It is valid while `nccl` lives. */
TILEWISE_API tilewise_status tilewise_nccl_communicator_get(tilewise_nccl_communicator* nccl,
                                                            tilewise_communicator* communicator);

/* ---- schedules -------------------------------------------------------------------------- */

/* The tokens that a rank holds, of a whole axis of any length. */
enum {
  /* Contiguous, or zigzag if the rank with the most work then has at least 5 % less. */
  TILEWISE_SCHEDULE_AUTOMATIC = 0,
  /* One range of tokens for each rank. */
  TILEWISE_SCHEDULE_CONTIGUOUS = 1,
  /* The axis is cut into 2 * size ranges, and rank r holds number r and number 2 * size - 1 - r.
   * Under a causal mask every rank then has the same work. */
  TILEWISE_SCHEDULE_ZIGZAG = 2,
  /* Rank r holds the tokens r, r + size, r + 2 * size, ... Not with ALiBi or dropout. */
  TILEWISE_SCHEDULE_STRIPED = 3,
  /* The schedule of MagiAttention, for any mask, by a token plan. */
  TILEWISE_SCHEDULE_BALANCED = 4
};

/* The tokens begin, begin + stride, ... below end. */
typedef struct tilewise_token_range {
  int64_t begin;
  int64_t end;
  int64_t stride;
} tilewise_token_range;

enum { TILEWISE_MAX_TOKEN_RANGES = 2 };

/* Writes the ranges of tokens that `rank` of `size` holds of an axis of `length` tokens, in the
 * order of its rows, and their number (ranges may be empty). `schedule` is contiguous, zigzag or
 * striped. */
TILEWISE_API tilewise_status
tilewise_token_ranges(int32_t schedule, int64_t length, int32_t size, int32_t rank,
                      tilewise_token_range ranges[TILEWISE_MAX_TOKEN_RANGES], int32_t* count);

/* ---- token plans ------------------------------------------------------------------------ */

/* The balanced schedule of a mask: which tokens each rank holds, and which keys it needs of others.
 * It is made once for a mask, and serves every layer, step and operation. Every rank makes it by
 * itself, with the same result, without communication. docs/distributed-magi.md describes it. */
typedef struct tilewise_token_plan tilewise_token_plan;

typedef struct tilewise_token_plan_options {
  size_t struct_size;
  int64_t q_len;      /* of the whole query side */
  int64_t k_len;      /* of the whole key side */
  int64_t chunk_rows; /* queries that are dealt to a rank together; 0: automatic, some 16 chunks for
                         each rank */
  int64_t stages;     /* parts in which a rank receives keys; 0: automatic, up to 8 */
  int32_t size;       /* number of ranks, 1 to 65536 */
  int32_t reserved;   /* 0 */
} tilewise_token_plan_options;

TILEWISE_API void tilewise_token_plan_options_init(tilewise_token_plan_options* options);

/* Makes the token plan of the mask of `mask`, a problem of which only these members are read:
 *   slices                           the whole mask, of the token axes; or without them
 *   causal, window_*, alignment      what a sequence sees, and
 *   cu_seqlens_q and cu_seqlens_k    where packed sequences begin, for all tokens; absent: there is
 *                                    one sequence
 *   q, layout                        the number of heads, if slices name heads
 * seqused and a boolean mask are refused. Reads the contents of the lists, on the CPU. */
TILEWISE_API tilewise_status tilewise_token_plan_create(const tilewise_problem* mask,
                                                        const tilewise_token_plan_options* options,
                                                        tilewise_token_plan** plan);
TILEWISE_API void tilewise_token_plan_destroy(tilewise_token_plan* plan); /* NULL is allowed */

typedef struct tilewise_token_plan_info {
  size_t struct_size;
  int64_t q_len;
  int64_t k_len;
  int64_t chunk_rows;
  int64_t stages; /* in which a rank receives keys, after its own */
  int64_t area;   /* visible pairs of query and key; the sum over the heads if slices name heads */
  int64_t largest_area;     /* of a rank */
  int64_t area_lower_bound; /* no deal of the chunks has a smaller largest area */
  int64_t received_rows;    /* rows of keys, and as many of values, that all ranks receive */
  double imbalance;         /* the largest area over the mean; 1 is perfect */
  int32_t size;
  int32_t reserved;
} tilewise_token_plan_info;

typedef struct tilewise_token_plan_rank_info {
  size_t struct_size;
  int64_t q_rows; /* tokens that the rank holds */
  int64_t k_rows;
  int64_t area;
  /* Rows of keys, and as many of values. In bytes, forward moves these rows times Hk (D + Dv) times
   * the size of a number; backward the same, and gradients of them in fp32 (fp64) back. */
  int64_t sent_rows;
  int64_t received_rows;
} tilewise_token_plan_rank_info;

TILEWISE_API void tilewise_token_plan_info_init(tilewise_token_plan_info* info);
TILEWISE_API void tilewise_token_plan_rank_info_init(tilewise_token_plan_rank_info* info);
TILEWISE_API tilewise_status tilewise_token_plan_describe(const tilewise_token_plan* plan,
                                                          tilewise_token_plan_info* info);
TILEWISE_API tilewise_status tilewise_token_plan_describe_rank(const tilewise_token_plan* plan,
                                                               int32_t rank,
                                                               tilewise_token_plan_rank_info* info);

/* Of which tokens; both are the same if there are as many keys as queries. */
enum { TILEWISE_QUERIES = 0, TILEWISE_KEYS = 1 };

/* Gives the ranges of tokens that a rank holds, in the order of its rows; their stride is 1. They
 * belong to the plan. */
TILEWISE_API tilewise_status tilewise_token_plan_ranges(const tilewise_token_plan* plan,
                                                        int32_t side, int32_t rank,
                                                        const tilewise_token_range** ranges,
                                                        int64_t* count);

/* Writes the position in the whole of each of the rank's rows (q_rows or k_rows of them), for
 * position embeddings such as RoPE. */
TILEWISE_API tilewise_status tilewise_token_plan_positions(const tilewise_token_plan* plan,
                                                           int32_t side, int32_t rank,
                                                           int64_t* positions);

/* Copies the rank's rows from an array with a row for each token to one with the rank's rows, and
 * back. Rows are contiguous, of `row_bytes` bytes. undispatch leaves the rows of other ranks. */
TILEWISE_API tilewise_status tilewise_token_plan_dispatch(const tilewise_token_plan* plan,
                                                          int32_t side, int32_t rank,
                                                          const void* whole, int64_t row_bytes,
                                                          void* rows);
TILEWISE_API tilewise_status tilewise_token_plan_undispatch(const tilewise_token_plan* plan,
                                                            int32_t side, int32_t rank,
                                                            const void* rows, int64_t row_bytes,
                                                            void* whole);

/* ---- plans ------------------------------------------------------------------------------ */

typedef struct tilewise_distributed_options {
  size_t struct_size;
  int64_t q_len;           /* of the whole query side: Sq, or T if it is packed */
  int64_t k_len;           /* of the whole key side */
  double timeout_seconds;  /* of an exchange; 300 by default */
  int32_t schedule;        /* TILEWISE_SCHEDULE_...; automatic by default */
  int32_t max_concurrency; /* as in tilewise_plan_options, and so are the two below */
  const char* kernel;
  const char* cpu_target;
  /* NULL, or the token plan of the balanced schedule, which q_len and k_len follow: then they may
   * be 0, and `schedule` automatic. Plans keep no reference to it. */
  const tilewise_token_plan* token_plan;
} tilewise_distributed_options;

TILEWISE_API void tilewise_distributed_options_init(tilewise_distributed_options* options);

/* Says which schedule `automatic` means for a problem on `size` ranks, without a token plan. It
 * reads cu_seqlens, seqused and the options of the problem, but not the number of rows of its
 * tensors, so that it can be called before the tokens are divided. */
TILEWISE_API tilewise_status tilewise_distributed_schedule(
    const tilewise_problem* problem, const tilewise_distributed_options* options, int32_t size,
    int32_t* schedule);

/* The work and the messages of a plan on this rank. */
typedef struct tilewise_distributed_info {
  size_t struct_size;
  int32_t schedule;      /* never automatic */
  int32_t steps;         /* number of ranks whose keys this rank computes with, its own included;
                            with a token plan, its own keys and the stages in which it receives */
  int64_t pairs;         /* visible pairs of query and key of one head, over all sequences; with a
                            token plan the area of this rank */
  int64_t sent_messages; /* of a run, without the check that all ranks have the same problem and the
                            sums of dsink and dalibi_slopes */
  int64_t sent_bytes;
  int64_t received_messages;
  int64_t received_bytes;
} tilewise_distributed_info;

/* A plan of an operation on this rank. `problem` has this rank's tokens:
 *   q, out, lse, dout, dlse, dq   the rows that tilewise_token_ranges() gives of options.q_len
 *   k, v, dk, dv                  those of options.k_len
 *   cu_seqlens, seqused           of the whole batch, on every rank; so are alibi_slopes and sink
 *   bias, mask                    the rank's rows and all columns (dense only)
 *   dsink, dalibi_slopes          the gradient of the whole, on every rank
 *
 * dbias is fp32 (fp64 for fp64 inputs), and needs a bias that does not broadcast over the rows. The
 * offset d of the semantics is that of the whole sequences. Slices need a token plan.
 *
 * With a token plan, the rows are those of its ranges, in packed tensors or in dense ones with
 * B = 1, and the mask is that of the token plan alone: slices, causal, windows and cu_seqlens are
 * refused, and so are bias, mask, ALiBi, dropout and seqused.
 *
 * Making a plan does not communicate, and reads the contents of cu_seqlens and seqused, which
 * decide what is sent. */
typedef struct tilewise_distributed_plan tilewise_distributed_plan;
TILEWISE_API tilewise_status tilewise_distributed_plan_create(
    int32_t operation, const tilewise_problem* problem, const tilewise_distributed_options* options,
    const tilewise_communicator* communicator, tilewise_distributed_plan** plan);
TILEWISE_API void tilewise_distributed_plan_destroy(tilewise_distributed_plan* plan);
TILEWISE_API tilewise_status tilewise_distributed_plan_workspace(
    const tilewise_distributed_plan* plan, size_t* bytes, size_t* alignment);
TILEWISE_API void tilewise_distributed_info_init(tilewise_distributed_info* info);
TILEWISE_API tilewise_status tilewise_distributed_plan_info(const tilewise_distributed_plan* plan,
                                                            tilewise_distributed_info* info);

/* Runs the plan on tensors of the planned shapes, with the planned contents of cu_seqlens and
 * seqused. Collective. First all ranks compare their problems: if one of them differs or is
 * refused, every rank returns TILEWISE_INVALID_ARGUMENT with a message that names it, nothing else
 * has been sent, and the communicator remains usable. If a rank fails later, every rank returns a
 * status other than TILEWISE_OK with a message that names it; outputs are then undefined, and the
 * communicator is not usable any more. The bits of a result are the same from run to run.
 *
 * For tensors on a device a run returns when everything has been started on the executor's stream.
 * The ranks compare their problems in the first run of a plan, and again if something has changed
 * since, so that all ranks make and reuse their plans alike. */
TILEWISE_API tilewise_status tilewise_distributed_plan_run(const tilewise_distributed_plan* plan,
                                                           const tilewise_problem* problem,
                                                           void* workspace, size_t workspace_bytes,
                                                           const tilewise_executor* executor);

/* Plan, allocate and run. A rank whose problem is refused takes part in the comparison, so that no
 * other rank waits for it. Where the communicator reads after a failure, the memory that they
 * allocated then remains. */
TILEWISE_API tilewise_status tilewise_distributed_forward(
    const tilewise_problem* problem, const tilewise_distributed_options* options,
    const tilewise_communicator* communicator, const tilewise_executor* executor);
TILEWISE_API tilewise_status tilewise_distributed_backward(
    const tilewise_problem* problem, const tilewise_distributed_options* options,
    const tilewise_communicator* communicator, const tilewise_executor* executor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_DISTRIBUTED_H_ */
