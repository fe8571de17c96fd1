/* Tilewise: exact attention, tile by tile. The C interface (C99).
 *
 *   tilewise_problem problem;
 *   tilewise_problem_init(&problem);
 *   problem.q = ...; problem.k = ...; problem.v = ...; problem.out = ...; problem.causal = 1;
 *   if (tilewise_forward(&problem, NULL) != TILEWISE_OK) puts(tilewise_last_error());
 *
 * Letters in shapes: B batch, Sq query length, Sk key length, H query heads, Hk key/value heads (H
 * a multiple of Hk), D head dimension of Q and K, Dv of V and O, T total tokens of a packed batch.
 * Sizes and strides are int64, strides count elements. Semantics, accuracy and determinism:
 * docs/semantics.md.
 *
 * Every function may be called from many threads at once. None prints, exits or throws. Functions
 * that can fail return a status; tilewise_last_error() then holds one line, local to the thread,
 * that names the argument, its value and the limit.
 */
#ifndef TILEWISE_TILEWISE_H_
#define TILEWISE_TILEWISE_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* The version is defined here and nowhere else. */
#define TILEWISE_VERSION_MAJOR 0
#define TILEWISE_VERSION_MINOR 1
#define TILEWISE_VERSION_PATCH 0

#if defined(_WIN32)
#define TILEWISE_API
#else
#define TILEWISE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ----------------------------------------------------------------------------- */

typedef int32_t tilewise_status;
enum {
  TILEWISE_OK = 0,
  TILEWISE_INVALID_ARGUMENT = 1, /* shape, stride, dtype, pointer, option, aliasing, workspace */
  TILEWISE_UNSUPPORTED = 2,      /* legal, but not by this kernel, device or build */
  TILEWISE_NO_MEMORY = 3,
  TILEWISE_DEVICE_ERROR = 4,
  TILEWISE_INTERNAL_ERROR = 5, /* a defect of the library: please report it */
  TILEWISE_TIMEOUT = 6,        /* another rank did not answer in time (tilewise_distributed.h) */
  TILEWISE_REMOTE_ERROR = 7    /* another rank has failed */
};

/* Returns the name of a status ("OK", "INVALID_ARGUMENT", ...), never NULL. */
TILEWISE_API const char* tilewise_status_name(tilewise_status status);

/* Returns the message of the last failure on this thread; "" if there was none. It is valid until
 * the thread's next call. */
TILEWISE_API const char* tilewise_last_error(void);

/* ---- tensors ---------------------------------------------------------------------------- */

enum {
  TILEWISE_FP64 = 1,
  TILEWISE_FP32 = 2,
  TILEWISE_BF16 = 3,
  TILEWISE_FP16 = 4,
  TILEWISE_INT32 = 5,
  TILEWISE_INT64 = 6,
  TILEWISE_BOOL = 7, /* one byte, zero is false */
  TILEWISE_E4M3 = 8, /* fp8 of q, k and v: largest 448, no infinity, NaN is 0x7f or 0xff */
  TILEWISE_E5M2 = 9  /* fp8 of q, k and v: largest 57344, with infinity and NaN */
};

enum { TILEWISE_CPU = 0, TILEWISE_CUDA = 1 };

enum { TILEWISE_MAX_RANK = 4 };

/* A view of memory that the caller owns. rank 0 means "absent". A size-0 tensor may have data =
 * NULL. The stride of a dimension of size <= 1 is ignored; stride 0 expands an input. Frozen:
 * nested in tilewise_problem. */
typedef struct tilewise_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int32_t device;       /* TILEWISE_CPU or TILEWISE_CUDA */
  int32_t device_index; /* of that device; 0 for the CPU */
  int64_t shape[TILEWISE_MAX_RANK];
  int64_t strides[TILEWISE_MAX_RANK]; /* in elements */
} tilewise_tensor;

/* Returns a contiguous (row-major) CPU tensor over `data`, of rank 1 to 4; another rank gives an
 * absent tensor. */
TILEWISE_API tilewise_tensor tilewise_contiguous(void* data, int32_t dtype, int32_t rank,
                                                 const int64_t* shape);

/* ---- problem ---------------------------------------------------------------------------- */

enum { TILEWISE_BSHD = 0, TILEWISE_BHSD = 1 }; /* order of a dense tensor's dimensions */
enum { TILEWISE_BOTTOM_RIGHT = 0, TILEWISE_TOP_LEFT = 1 }; /* d = Sk - Sq, or d = 0 */

/* The kind of a slice, in its own coordinates; d = its key length - its query length. */
enum {
  TILEWISE_SLICE_FULL = 0,
  TILEWISE_SLICE_CAUSAL = 1,         /* j <= i + d */
  TILEWISE_SLICE_INVERSE_CAUSAL = 2, /* j >= i */
  TILEWISE_SLICE_BAND = 3            /* i <= j <= i + d */
};

/* A tile of the scores of one query head of one sequence, for a score function. The pair of the row
 * r < rows and the key c < keys of the tile has its score, and its gradient, at
 * r * row_stride + c * key_stride; it is query first_query + r and key first_key + c of the
 * sequence. One of the strides is 1. The library makes tiles; later versions may append fields. */
typedef struct tilewise_score_tile {
  int32_t dtype; /* of the scores and gradients: TILEWISE_FP32 (float), or TILEWISE_FP64 (double)
                    for fp64 inputs */
  int32_t reserved;
  int64_t batch; /* number of the sequence */
  int64_t head;  /* query head */
  int64_t first_query;
  int64_t first_key;
  int64_t rows;
  int64_t keys;
  int64_t row_stride; /* in elements */
  int64_t key_stride;
  int64_t diagonal; /* d: query i stands at key i + d */
} tilewise_score_tile;

/* A function of the scores, on the CPU. `forward` replaces the scores of a tile by its results.
 * `backward` gets the scores that `forward` got, and the gradients with respect to its results,
 * which it replaces by those with respect to the scores; it may add to gradients of its own.
 * Threads call both at the same time, with tiles that share no pair (docs/semantics.md, "Score
 * functions"). All zero: no function. Frozen: nested in tilewise_problem. */
typedef struct tilewise_score_function {
  void (*forward)(void* user_data, const tilewise_score_tile* tile, void* scores);
  void (*backward)(void* user_data, const tilewise_score_tile* tile, const void* scores,
                   void* gradients); /* not NULL in the backward pass */
  void* user_data;
  int64_t reserved; /* 0 */
} tilewise_score_function;

/* The softmax_scale that means 1/sqrt(D). NaN and -infinity are errors. */
#define TILEWISE_DEFAULT_SCALE ((double)INFINITY)

/* A problem, forward and backward. Start from tilewise_problem_init(): it sets struct_size, every
 * tensor absent and every option off. q and k/v are each dense (rank 4, `layout`) or packed
 * (rank 3, (T, H, D)), independently.
 *
 *   q    (B, Sq, H, D)  or (T, H, D)      out, dout, dq   like q, out and dout with Dv
 *   k    (B, Sk, Hk, D) or (Tk, Hk, D)    dk              like k
 *   v    (B, Sk, Hk, Dv) or (Tk, Hk, Dv)  dv              like v
 *   k, v with page_table: pages (N, page size, Hk, D) and (N, page size, Hk, Dv), in `layout`
 *   lse, dlse  (B, H, Sq) or (H, T): fp32, fp64 for fp64 inputs
 *
 * q, k, v, dout have one dtype; out, dq, dk, dv have it too or are fp32. The innermost stride (D,
 * Dv) is 1. In the forward pass k and v may both be TILEWISE_E4M3, or both TILEWISE_E5M2: then q
 * has their dtype or is bf16, fp16 or fp32, and out is bf16, fp16 or fp32. */
typedef struct tilewise_problem {
  size_t struct_size;

  int32_t layout;    /* TILEWISE_BSHD or TILEWISE_BHSD, of every dense tensor */
  int32_t causal;    /* 1: j <= i + d */
  int32_t alignment; /* TILEWISE_BOTTOM_RIGHT or TILEWISE_TOP_LEFT: the offset d of causal, window
                        and ALiBi */
  int32_t deterministic;
  int32_t batch_invariant;
  int32_t reserved;     /* 0 */
  int64_t window_left;  /* keys j >= i + d - window_left; -1 is unbounded */
  int64_t window_right; /* keys j <= i + d + window_right; -1 is unbounded */
  double softmax_scale; /* TILEWISE_DEFAULT_SCALE, or -1e30 to 1e30 (fp64: -1e300 to 1e300) */
  double softcap;       /* c > 0: scores become c*tanh(score/c); 0 is off, and so is a finite c of
                           1e30 (fp64: 1e300) or more, which changes no score */
  double dropout_p;     /* 0 <= p < 1, on the normalised probabilities; LSE ignores it */
  uint64_t dropout_seed;
  uint64_t dropout_offset; /* < 2^32 */
  int64_t max_seqlen_q; /* packed with cu_seqlens: bound of the sequence lengths; -1: T. Longer ones
                           are cut. */
  int64_t max_seqlen_k;

  tilewise_tensor q, k, v; /* inputs */
  tilewise_tensor out;     /* output of forward, input of backward */
  tilewise_tensor lse;     /* natural logarithm; optional output of forward, input of backward */

  tilewise_tensor
      cu_seqlens_q; /* (B+1) int32 or int64: starts of the packed sequences and the end */
  tilewise_tensor cu_seqlens_k;
  tilewise_tensor seqused_k; /* (B) int32 or int64: keys in use of each sequence */
  tilewise_tensor slices;    /* (N, 5) or (N, 6) int64: q0 q1 k0 k1 kind [head], head -1 is all */
  tilewise_tensor mask;      /* bool, broadcast from the right to (B, H, Sq, Sk); true is visible */
  tilewise_tensor bias;      /* q's dtype or fp32, broadcast from the right to (B, H, Sq, Sk) */
  tilewise_tensor alibi_slopes; /* fp32 (H) or (B, H) */
  tilewise_tensor sink;         /* fp32 (H): a logit that joins the denominator only */

  tilewise_tensor dout; /* backward: inputs; dlse optional */
  tilewise_tensor dlse;
  tilewise_tensor dq, dk, dv; /* backward: outputs, each optional */
  tilewise_tensor dbias;      /* shape and dtype of bias */
  tilewise_tensor dsink;      /* (H) fp32, or fp64 for fp64 inputs */

  tilewise_tensor seqused_q;     /* (B) int32 or int64: query rows in use of each sequence */
  tilewise_tensor dalibi_slopes; /* backward: output; shape of alibi_slopes; fp32, or fp64 for fp64
                                    inputs */

  /* 1: the outputs hold the results of earlier calls on other keys, and this call adds its own
   * (docs/semantics.md, "Parts"). Forward merges its keys into `out` and `lse`, both required and
   * fp32, or fp64 for fp64 inputs. A row with lse = -infinity is empty, whatever its `out` holds. A
   * row that sees no key of this call keeps its result. `sink` belongs to exactly one of the calls.
   * Backward reads the `out` and `lse` of all calls, and adds to dq, dk, dv, dbias, dsink and
   * dalibi_slopes, all fp32, or fp64 for fp64 inputs. Rows and keys that no sequence uses keep what
   * they hold. */
  int32_t accumulate;
  int32_t reserved2; /* 0 */

  /* (B, 4) int64: sequence b is a part of a whole sequence, given by the number of the whole, the
   * row of the whole that its first query is, the key of the whole that its first key is, and d of
   * the whole. Causal, window, ALiBi and dropout act as in the whole, and `alignment` has no
   * effect. Mask and bias are views cut to the part. Not with slices. */
  tilewise_tensor parts;

  tilewise_tensor phi; /* forward: fp32 (1) or (H), a guess of the largest score of a row, which
                          FlashDecoding++ subtracts from all scores; it changes time, never a result
                          beyond rounding, and other kernels ignore it */
  tilewise_tensor phi_fallbacks; /* forward: int64 (1), on the device of q. A kernel that reads phi
                                    adds how often it had to compute with the rows' own maxima */

  tilewise_tensor page_table; /* (B, pages) int32, forward: k and v are pages (N, page size, Hk, D),
                                 and key j of sequence b is row j % page size of page
                                 page_table[b][j / page size]. Sk = pages * page size; seqused_k
                                 says how many of these keys a sequence has. */

  /* The factors of the stored numbers of q, k and v of fp8; fp32, positive; absent: 1.
   * (1) for the whole tensor, (B, Hk), or (B, Hk, ceil(S / 128)) with a number for each 128 rows; B
   * is 1 in the last one for packed tensors, whose blocks are those of the token axis, S = T. Query
   * head h has the number of key/value head h / G. */
  tilewise_tensor q_descale, k_descale, v_descale;

  tilewise_score_function score_function; /* after softcap, before bias; CPU only */
} tilewise_problem;

TILEWISE_API void tilewise_problem_init(tilewise_problem* problem);

/* ---- executor --------------------------------------------------------------------------- */

/* An executor distributes work over threads. parallel_for calls fn(context, item) once for every
 * item in 0..n-1, in any order and on any threads, at most max_concurrency at a time, and returns
 * when all are done. A call from inside fn must run inline. The result of a run never depends on
 * the executor. */
typedef struct tilewise_executor {
  size_t struct_size;
  int32_t max_concurrency; /* >= 1; fixed while a plan made for it lives */
  int32_t reserved;        /* 0 */
  void (*parallel_for)(void* self, int64_t n, void (*fn)(void* context, int64_t item),
                       void* context);
  void* self;
  void* stream; /* device queue (cudaStream_t); ignored by CPU kernels */
} tilewise_executor;

/* Sets `executor` to one that runs everything on the calling thread. */
TILEWISE_API void tilewise_executor_init(tilewise_executor* executor);

/* A pool of `threads` threads, the caller's included (0: as many as the CPU affinity and the
 * cgroup's quota allow). Threads start with the first use, sleep when idle, and are created
 * again after fork(). The default pool has $TILEWISE_NUM_THREADS threads, else $OMP_NUM_THREADS,
 * else as many as 0 gives. */
typedef struct tilewise_pool tilewise_pool;
TILEWISE_API tilewise_status tilewise_pool_create(int32_t threads, tilewise_pool** pool);
TILEWISE_API void tilewise_pool_destroy(tilewise_pool* pool); /* NULL is allowed */
TILEWISE_API tilewise_status tilewise_pool_executor(tilewise_pool* pool,
                                                    tilewise_executor* executor);

/* Ends the threads of the default pool and of every tilewise_pool, and returns when they are gone.
 * They start again with the next use, so that this may be called at any time and repeatedly: before
 * fork(), before a plugin is unloaded, to free the threads of an idle process. Returns
 * TILEWISE_INVALID_ARGUMENT if another thread is computing; the pool that it uses keeps its
 * threads. Unloading the library and exit() need no call of it. */
TILEWISE_API tilewise_status tilewise_shutdown(void);

/* ---- one-call functions ----------------------------------------------------------------- */

/* Computes out = softmax(scores) v, and lse if given. `executor` NULL means the default pool.
 * Allocates the workspace. The contents of cu_seqlens, seqused_q, seqused_k, slices, page_table and
 * parts are checked (a plan's run only clamps them); of CUDA tensors the addresses are checked
 * instead. On failure nothing is written. */
TILEWISE_API tilewise_status tilewise_forward(const tilewise_problem* problem,
                                              const tilewise_executor* executor);

/* Computes the gradients of the forward pass: reads q, k, v, out, lse, dout (and dlse), writes
 * those of dq, dk, dv, dbias, dsink, dalibi_slopes that are given. Allocates the workspace. */
TILEWISE_API tilewise_status tilewise_backward(const tilewise_problem* problem,
                                               const tilewise_executor* executor);

/* ---- plans ------------------------------------------------------------------------------ */

enum { TILEWISE_FORWARD = 0, TILEWISE_BACKWARD = 1 };

typedef struct tilewise_plan_options {
  size_t struct_size;
  const char* kernel; /* force a kernel by name; NULL: $TILEWISE_KERNEL if set, else the first that
                         supports the problem */
  const char* cpu_target; /* force an instruction set; NULL: $TILEWISE_CPU_TARGET if set, else the
                             best of this machine */
  int32_t
      max_concurrency; /* of the executors that the plan will run on; 0: that of the default pool */
  int32_t reserved;    /* 0 */
} tilewise_plan_options;

TILEWISE_API void tilewise_plan_options_init(tilewise_plan_options* options);

/* A plan depends on shapes, dtypes, which tensors are present, host bounds and options only: data
 * pointers are ignored and contents are not read. It is immutable; many threads may run it at once,
 * each with its own workspace. */
typedef struct tilewise_plan tilewise_plan;
TILEWISE_API tilewise_status tilewise_plan_create(int32_t operation,
                                                  const tilewise_problem* problem,
                                                  const tilewise_plan_options* options,
                                                  tilewise_plan** plan);
TILEWISE_API void tilewise_plan_destroy(tilewise_plan* plan); /* NULL is allowed */
TILEWISE_API tilewise_status tilewise_plan_workspace(const tilewise_plan* plan, size_t* bytes,
                                                     size_t* alignment);
TILEWISE_API const char* tilewise_plan_kernel(
    const tilewise_plan* plan); /* name; valid while the plan lives */
TILEWISE_API const char* tilewise_plan_reason(
    const tilewise_plan* plan); /* one line: why this kernel, why not those before it */

/* Runs the plan on tensors of the planned shapes (strides and pointers may differ). Allocates
 * nothing. The content of the workspace at entry does not matter. Contents of cu_seqlens,
 * seqused_q, seqused_k, slices, page_table and parts are clamped, never trusted. */
TILEWISE_API tilewise_status tilewise_plan_run(const tilewise_plan* plan,
                                               const tilewise_problem* problem, void* workspace,
                                               size_t workspace_bytes,
                                               const tilewise_executor* executor);

/* ---- registry --------------------------------------------------------------------------- */

/* The kernels of an operation in order of preference; the last one supports everything on the CPU.
 */
TILEWISE_API int32_t tilewise_kernel_count(int32_t operation);
TILEWISE_API const char* tilewise_kernel_name(int32_t operation,
                                              int32_t index); /* NULL past the end */
TILEWISE_API const char* tilewise_kernel_description(int32_t operation,
                                                     int32_t index); /* NULL past the end */

/* Returns TILEWISE_OK, or TILEWISE_UNSUPPORTED with the reason in tilewise_last_error(). */
TILEWISE_API tilewise_status tilewise_kernel_supports(int32_t operation, const char* kernel,
                                                      const tilewise_problem* problem);

/* The instruction sets that the library has kernels for, best first, and whether this machine can
 * run them. */
TILEWISE_API int32_t tilewise_cpu_target_count(void);
TILEWISE_API const char* tilewise_cpu_target_name(int32_t index); /* NULL past the end */
TILEWISE_API int32_t tilewise_cpu_target_available(int32_t index);

/* "0.1.0" */
TILEWISE_API const char* tilewise_version(void);

/* Describes what this build can do on this machine, as `tilewise info` prints it: writes at most
 * `size` bytes of the description to `text`, the last one 0, and returns its length without that 0.
 * text NULL with size 0 returns the length alone. Returns 0 if there is no memory for it. */
TILEWISE_API size_t tilewise_info(char* text, size_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_H_ */
