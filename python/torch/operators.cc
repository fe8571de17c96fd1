// The operators tilewise::attention_forward, tilewise::attention_backward and, with the gradient of
// alibi_slopes as its last result, tilewise::attention_backward_slopes. Shapes are those of
// tilewise.h. The schemas below are frozen (python/tests/torch/test_contract.py): arguments are
// only added at the end, with defaults.
#include <cmath>
#include <memory>
#include <string>

#include "run.h"
#include "tensor.h"

namespace tilewise::torch_binding {
namespace {

#define TILEWISE_TENSOR_SCHEMA                                                             \
  "Tensor? mask, Tensor? bias, Tensor? alibi_slopes, Tensor? sink, Tensor? cu_seqlens_q, " \
  "Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? slices, Tensor? dropout_state, "
#define TILEWISE_OPTION_SCHEMA                                                              \
  "float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, " \
  "bool top_left=False, float softcap=0.0, float dropout_p=0.0, int max_seqlen_q=-1, "      \
  "int max_seqlen_k=-1, bool bhsd=False, bool deterministic=False, "                        \
  "bool batch_invariant=False"

constexpr const char* kForwardSchema =
    "attention_forward(Tensor q, Tensor k, Tensor v, " TILEWISE_TENSOR_SCHEMA TILEWISE_OPTION_SCHEMA
    ", bool out_fp32=False, Tensor? seqused_q=None, Tensor? page_table=None, "
    "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None) "
    "-> (Tensor out, Tensor lse)";
#define TILEWISE_BACKWARD_SCHEMA                                                            \
  "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, "                  \
  "Tensor lse, " TILEWISE_TENSOR_SCHEMA TILEWISE_OPTION_SCHEMA                              \
  ", int gradients=7, Tensor? seqused_q=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor " \
  "dbias, Tensor dsink"

constexpr const char* kBackwardSchema = "attention_backward" TILEWISE_BACKWARD_SCHEMA ")";
constexpr const char* kSlopesSchema =
    "attention_backward_slopes" TILEWISE_BACKWARD_SCHEMA ", Tensor dalibi_slopes)";

// The bits of `gradients`.
enum Gradient : std::int64_t { kQ = 1, kK = 2, kV = 4, kBias = 8, kSink = 16, kSlopes = 32 };

// ---- arguments ----------------------------------------------------------------------------------

// The arguments that forward and backward share, in the order of the schema.
struct Shared {
  Owned mask, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, slices;
  Owned dropout_state;  // (2) int64 on the CPU: seed and offset
  std::optional<double> softmax_scale;
  bool causal;
  std::int64_t window_left, window_right;
  bool top_left;
  double softcap, dropout_p;
  std::int64_t max_seqlen_q, max_seqlen_k;
  bool bhsd, deterministic, batch_invariant;

  explicit Shared(
      Arguments& arguments)  // members are initialised in the order of their declaration
      : mask(arguments.optional_tensor()),
        bias(arguments.optional_tensor()),
        alibi_slopes(arguments.optional_tensor()),
        sink(arguments.optional_tensor()),
        cu_seqlens_q(arguments.optional_tensor()),
        cu_seqlens_k(arguments.optional_tensor()),
        seqused_k(arguments.optional_tensor()),
        slices(arguments.optional_tensor()),
        dropout_state(arguments.optional_tensor()),
        softmax_scale(arguments.optional_number()),
        causal(arguments.boolean()),
        window_left(arguments.integer()),
        window_right(arguments.integer()),
        top_left(arguments.boolean()),
        softcap(arguments.number()),
        dropout_p(arguments.number()),
        max_seqlen_q(arguments.integer()),
        max_seqlen_k(arguments.integer()),
        bhsd(arguments.boolean()),
        deterministic(arguments.boolean()),
        batch_invariant(arguments.boolean()) {}
};

void set_dropout(const Shared& shared, tilewise_problem* problem) {
  problem->dropout_p = shared.dropout_p;
  // 0 is no dropout, and the library refuses numbers outside of 0 to 1.
  if (!(shared.dropout_p > 0.0 && shared.dropout_p < 1.0)) return;
  if (!shared.dropout_state) raise("dropout_state: is absent, must be (2) int64 with dropout_p");
  const tilewise_tensor state = view("dropout_state", shared.dropout_state);
  if (state.device != TILEWISE_CPU || state.dtype != TILEWISE_INT64 || state.rank != 1 ||
      state.shape[0] != 2) {
    raise("dropout_state: must be (2) int64 on the CPU: seed and offset");
  }
  const auto* const words = static_cast<const std::int64_t*>(state.data);
  problem->dropout_seed = static_cast<std::uint64_t>(words[0]);
  problem->dropout_offset = static_cast<std::uint64_t>(words[state.strides[0]]);
}

// In C a number that is not finite stands for 1/sqrt(D). In the schema None does.
void set_scale(const Shared& shared, tilewise_problem* problem) {
  if (!shared.softmax_scale) return;
  if (!std::isfinite(*shared.softmax_scale)) {
    raise(("softmax_scale: is " + std::to_string(*shared.softmax_scale) +
           ", must be finite; None stands for 1/sqrt(D)")
              .c_str());
  }
  problem->softmax_scale = *shared.softmax_scale;
}

tilewise_problem make_problem(const Shared& shared) {
  tilewise_problem problem;
  tilewise_problem_init(&problem);
  problem.layout = shared.bhsd ? TILEWISE_BHSD : TILEWISE_BSHD;
  problem.causal = shared.causal;
  problem.alignment = shared.top_left ? TILEWISE_TOP_LEFT : TILEWISE_BOTTOM_RIGHT;
  problem.deterministic = shared.deterministic;
  problem.batch_invariant = shared.batch_invariant;
  problem.window_left = shared.window_left;
  problem.window_right = shared.window_right;
  set_scale(shared, &problem);
  problem.softcap = shared.softcap;
  problem.max_seqlen_q = shared.max_seqlen_q;
  problem.max_seqlen_k = shared.max_seqlen_k;
  problem.mask = view("mask", shared.mask);
  problem.bias = view("bias", shared.bias);
  problem.alibi_slopes = view("alibi_slopes", shared.alibi_slopes);
  problem.sink = view("sink", shared.sink);
  problem.cu_seqlens_q = view("cu_seqlens_q", shared.cu_seqlens_q);
  problem.cu_seqlens_k = view("cu_seqlens_k", shared.cu_seqlens_k);
  problem.seqused_k = view("seqused_k", shared.seqused_k);
  problem.slices = view("slices", shared.slices);
  set_dropout(shared, &problem);
  return problem;
}

void check_rank(const char* name, const tilewise_tensor& tensor) {
  if (tensor.rank == 3 || tensor.rank == 4) return;
  raise((std::string(name) + ": has " + std::to_string(tensor.rank) +
         " dimensions, must have 4, or 3 for a packed batch")
            .c_str());
}

// ---- forward ------------------------------------------------------------------------------------

Owned allocate_lse(const tilewise_tensor& q, bool bhsd) {
  const bool packed = q.rank == 3;
  const std::int64_t heads = packed ? q.shape[1] : q.shape[bhsd ? 1 : 2];
  const std::int64_t rows = packed ? q.shape[0] : q.shape[bhsd ? 2 : 1];
  const std::int64_t shape[] = {q.shape[0], heads, rows};
  const std::int64_t strides[] = {heads * rows, rows, 1};
  const std::int32_t dtype = torch_dtype(q.dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32);
  return allocate(packed ? 2 : 3, shape + packed, strides + packed, dtype, q);
}

void forward(Value* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments(stack);
  Owned q = arguments.tensor();
  Owned k = arguments.tensor();
  Owned v = arguments.tensor();
  const Shared shared(arguments);
  const bool out_fp32 = arguments.boolean();
  const Owned seqused_q = arguments.optional_tensor();
  const Owned page_table = arguments.optional_tensor();
  const Owned q_descale = arguments.optional_tensor();
  const Owned k_descale = arguments.optional_tensor();
  const Owned v_descale = arguments.optional_tensor();
  const tilewise_tensor like = view("q", q);  // made before a copy may change the strides
  check_rank("q", like);
  q = with_dense_rows("q", std::move(q));
  k = with_dense_rows("k", std::move(k));
  v = with_dense_rows("v", std::move(v));
  tilewise_problem problem = make_problem(shared);
  problem.seqused_q = view("seqused_q", seqused_q);
  problem.page_table = view("page_table", page_table);
  problem.q_descale = view("q_descale", q_descale);
  problem.k_descale = view("k_descale", k_descale);
  problem.v_descale = view("v_descale", v_descale);
  problem.q = view("q", q);
  problem.k = view("k", k);
  problem.v = view("v", v);
  check_rank("k", problem.k);
  check_rank("v", problem.v);
  const bool is_float8 = like.dtype == TILEWISE_E4M3 || like.dtype == TILEWISE_E5M2;
  const std::int32_t out_dtype = out_fp32 && like.dtype != TILEWISE_FP64 ? +TILEWISE_FP32
                                 : is_float8                             ? +TILEWISE_BF16
                                                                         : like.dtype;
  Owned out = allocate_like(like, problem.v.shape[problem.v.rank - 1], torch_dtype(out_dtype));
  Owned lse = allocate_lse(like, shared.bhsd);
  problem.out = view("out", out);
  problem.lse = view("lse", lse);
  run(TILEWISE_FORWARD, problem);
  stack[0] = to_value(std::move(out));
  stack[1] = to_value(std::move(lse));
}

// ---- backward -----------------------------------------------------------------------------------

struct Given {  // the tensors that only backward has
  Owned dout, dlse, q, k, v, out, lse;

  explicit Given(Arguments& arguments)
      : dout(arguments.tensor()),
        dlse(arguments.optional_tensor()),
        q(arguments.tensor()),
        k(arguments.tensor()),
        v(arguments.tensor()),
        out(arguments.tensor()),
        lse(arguments.tensor()) {}

  void make_rows_dense() {
    dout = with_dense_rows("dout", std::move(dout));
    q = with_dense_rows("q", std::move(q));
    k = with_dense_rows("k", std::move(k));
    v = with_dense_rows("v", std::move(v));
    out = with_dense_rows("out", std::move(out));
  }
};

// Returns a tensor of `like`'s shape if it is wanted, else one without elements.
Owned allocate_gradient(bool wanted, const tilewise_tensor& like, std::int32_t dtype) {
  if (wanted) return allocate_like(like, like.shape[like.rank - 1], torch_dtype(dtype));
  const std::int64_t shape = 0;
  const std::int64_t stride = 1;
  return allocate(1, &shape, &stride, torch_dtype(dtype), like);
}

// The results. One that is not wanted is an empty tensor of the dtype that it would have had.
struct Gradients {
  Owned dq, dk, dv, dbias, dsink, dalibi_slopes;

  Gradients(const Given& given, const Shared& shared, std::int64_t wanted) {
    const tilewise_tensor q = view("q", given.q);
    check_rank("q", q);
    check_rank("k", view("k", given.k));
    dq = allocate_gradient((wanted & kQ) != 0, q, q.dtype);
    dk = allocate_gradient((wanted & kK) != 0, view("k", given.k), q.dtype);
    dv = allocate_gradient((wanted & kV) != 0, view("v", given.v), q.dtype);
    const tilewise_tensor bias = shared.bias ? view("bias", shared.bias) : q;
    const tilewise_tensor sink = shared.sink ? view("sink", shared.sink) : q;
    dbias = allocate_gradient((wanted & kBias) != 0, bias, bias.dtype);
    const tilewise_tensor slopes =
        shared.alibi_slopes ? view("alibi_slopes", shared.alibi_slopes) : q;
    const std::int32_t sums = q.dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
    dsink = allocate_gradient((wanted & kSink) != 0, sink, sums);
    dalibi_slopes = allocate_gradient((wanted & kSlopes) != 0, slopes, sums);
  }

  void set(std::int64_t wanted, tilewise_problem* problem) const {
    if ((wanted & kQ) != 0) problem->dq = view("dq", dq);
    if ((wanted & kK) != 0) problem->dk = view("dk", dk);
    if ((wanted & kV) != 0) problem->dv = view("dv", dv);
    if ((wanted & kBias) != 0) problem->dbias = view("dbias", dbias);
    if ((wanted & kSink) != 0) problem->dsink = view("dsink", dsink);
    if ((wanted & kSlopes) != 0) problem->dalibi_slopes = view("dalibi_slopes", dalibi_slopes);
  }
};

Gradients compute_gradients(Value* stack) {
  Arguments arguments(stack);
  Given given(arguments);
  const Shared shared(arguments);
  const std::int64_t wanted = arguments.integer();
  const Owned seqused_q = arguments.optional_tensor();
  if ((wanted & kBias) != 0 && !shared.bias) raise("gradients: dbias is asked for without a bias");
  if ((wanted & kSink) != 0 && !shared.sink) raise("gradients: dsink is asked for without a sink");
  if ((wanted & kSlopes) != 0 && !shared.alibi_slopes)
    raise("gradients: dalibi_slopes is asked for without alibi_slopes");
  Gradients gradients(given, shared, wanted);  // made before a copy may change the strides
  given.make_rows_dense();
  tilewise_problem problem = make_problem(shared);
  problem.seqused_q = view("seqused_q", seqused_q);
  problem.dout = view("dout", given.dout);
  problem.dlse = view("dlse", given.dlse);
  problem.q = view("q", given.q);
  problem.k = view("k", given.k);
  problem.v = view("v", given.v);
  problem.out = view("out", given.out);
  problem.lse = view("lse", given.lse);
  gradients.set(wanted, &problem);
  run(TILEWISE_BACKWARD, problem);
  return gradients;
}

void put(Gradients gradients, Value* stack) {
  stack[0] = to_value(std::move(gradients.dq));
  stack[1] = to_value(std::move(gradients.dk));
  stack[2] = to_value(std::move(gradients.dv));
  stack[3] = to_value(std::move(gradients.dbias));
  stack[4] = to_value(std::move(gradients.dsink));
}

void backward(Value* stack, std::uint64_t, std::uint64_t) { put(compute_gradients(stack), stack); }

void backward_slopes(Value* stack, std::uint64_t, std::uint64_t) {
  Gradients gradients = compute_gradients(stack);
  Owned slopes = std::move(gradients.dalibi_slopes);
  put(std::move(gradients), stack);
  stack[5] = to_value(std::move(slopes));
}

// ---- registration -------------------------------------------------------------------------------

// Values are written as in the binaries of PyTorch 2.10, which later versions can read.
constexpr std::uint64_t kWrittenFor = (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);

// Libraries live as long as the process, so their handles are not stored.
const char* define_operators() {
  TorchLibraryOpaque* library = nullptr;
  if (torch().aoti_torch_library_init_def("tilewise", __FILE__, __LINE__, &library) != 0 ||
      torch().aoti_torch_library_def(library, kForwardSchema) != 0 ||
      torch().aoti_torch_library_def(library, kBackwardSchema) != 0 ||
      torch().aoti_torch_library_def(library, kSlopesSchema) != 0) {
    return "PyTorch refused the operators' schemas";
  }
  for (const char* const device : {"CPU", "CUDA"}) {
    TorchLibraryOpaque* kernels = nullptr;
    if (torch().aoti_torch_library_init_impl("tilewise", device, __FILE__, __LINE__, &kernels) !=
            0 ||
        torch().torch_library_impl(kernels, "attention_forward", forward, kWrittenFor) != 0 ||
        torch().torch_library_impl(kernels, "attention_backward", backward, kWrittenFor) != 0 ||
        torch().torch_library_impl(kernels, "attention_backward_slopes", backward_slopes,
                                   kWrittenFor) != 0) {
      return "PyTorch refused the operators' kernels";
    }
  }
  return "";
}

}  // namespace
}  // namespace tilewise::torch_binding

// Registers the operators with the PyTorch of this process. Returns "" or an error. Call it once.
extern "C" __attribute__((visibility("default"))) const char* tilewise_torch_register() {
  const char* const missing = tilewise::torch_binding::load();
  return *missing != '\0' ? missing : tilewise::torch_binding::define_operators();
}
