// The handlers that XLA calls for tilewise.jax: forward and backward, on the CPU and on CUDA.
//
// The names of the operands are attributes, "q k v mask" and "out lse", so that one handler accepts
// all operands of a call. Under vmap every operand has mapped dimensions first, each of the mapped
// size or 1. If the strides of the operands can express it, the handler runs one problem with a
// larger batch; otherwise it runs the problem once for each index.
#include <tilewise/tilewise.h>

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operand.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace tilewise::python {

struct Attributes {
  std::string_view inputs, outputs;
  std::int64_t rank_q, causal, window_left, window_right, max_seqlen_q, max_seqlen_k;
  std::int64_t deterministic, batch_invariant, layout, alignment;
  double softmax_scale, softcap, dropout_p;
  std::int64_t dropout_seed, dropout_offset;  // the bits of unsigned numbers
};

}  // namespace tilewise::python

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    tilewise::python::Attributes, StructMember<std::string_view>("inputs"),
    StructMember<std::string_view>("outputs"), StructMember<std::int64_t>("rank_q"),
    StructMember<std::int64_t>("causal"), StructMember<std::int64_t>("window_left"),
    StructMember<std::int64_t>("window_right"), StructMember<std::int64_t>("max_seqlen_q"),
    StructMember<std::int64_t>("max_seqlen_k"), StructMember<std::int64_t>("deterministic"),
    StructMember<std::int64_t>("batch_invariant"), StructMember<std::int64_t>("layout"),
    StructMember<std::int64_t>("alignment"), StructMember<double>("softmax_scale"),
    StructMember<double>("softcap"), StructMember<double>("dropout_p"),
    StructMember<std::int64_t>("dropout_seed"), StructMember<std::int64_t>("dropout_offset"));

namespace tilewise::python {
namespace {

std::int32_t dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F64:
      return TILEWISE_FP64;
    case ffi::DataType::F32:
      return TILEWISE_FP32;
    case ffi::DataType::BF16:
      return TILEWISE_BF16;
    case ffi::DataType::F16:
      return TILEWISE_FP16;
    case ffi::DataType::S32:
      return TILEWISE_INT32;
    case ffi::DataType::S64:
      return TILEWISE_INT64;
    case ffi::DataType::PRED:
      return TILEWISE_BOOL;
    default:
      return 0;  // the library refuses it
  }
}

ffi::Error invalid(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, message);
}

// XLA calls with denormals flushed to zero, on its own threads but not on those of the library, so
// a result would depend on the thread that computes it. Within this scope floating point follows
// the language.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&before_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t before_;
};

// The device and the stream of a call.
struct Place {
  std::int32_t device = TILEWISE_CPU;
  std::int32_t index = 0;
  void* stream = nullptr;
};

class Call {
 public:
  Call(const Attributes& attributes, const Place& place) : place_(place) {
    tilewise_problem_init(&problem_);
    problem_.causal = static_cast<std::int32_t>(attributes.causal);
    problem_.window_left = attributes.window_left;
    problem_.window_right = attributes.window_right;
    problem_.max_seqlen_q = attributes.max_seqlen_q;
    problem_.max_seqlen_k = attributes.max_seqlen_k;
    problem_.deterministic = static_cast<std::int32_t>(attributes.deterministic);
    problem_.batch_invariant = static_cast<std::int32_t>(attributes.batch_invariant);
    problem_.layout = static_cast<std::int32_t>(attributes.layout);
    problem_.alignment = static_cast<std::int32_t>(attributes.alignment);
    problem_.softmax_scale = attributes.softmax_scale;
    problem_.softcap = attributes.softcap;
    problem_.dropout_p = attributes.dropout_p;
    problem_.dropout_seed = static_cast<std::uint64_t>(attributes.dropout_seed);
    problem_.dropout_offset = static_cast<std::uint64_t>(attributes.dropout_offset);
  }

  // The first operand is one whose mapped dimensions hold for all.
  ffi::Error add(std::string_view name, const ffi::AnyBuffer& buffer, std::size_t mapped_rank) {
    for (const Field& field : kFields) {
      if (field.name != name) continue;
      const auto sizes = buffer.dimensions();
      const std::size_t rank = sizes.size() - mapped_rank;
      if (sizes.size() <= mapped_rank || rank > TILEWISE_MAX_RANK)
        return invalid(std::string(name) + ": has " + std::to_string(sizes.size()) + " dimensions");
      Operand operand = {&field, {}, {sizes.begin(), sizes.begin() + mapped_rank}, 0};
      operand.tensor =
          tilewise_contiguous(buffer.untyped_data(), dtype_of(buffer.element_type()),
                              static_cast<std::int32_t>(rank), sizes.begin() + mapped_rank);
      operand.tensor.device = place_.device;
      operand.tensor.device_index = place_.index;
      operand.bytes = ffi::ByteWidth(buffer.element_type());
      for (std::size_t d = 0; d < rank; ++d)
        operand.bytes *= static_cast<std::size_t>(operand.tensor.shape[d]);
      operands_.push_back(std::move(operand));
      return ffi::Error::Success();
    }
    return invalid("no operand is called " + std::string(name));
  }

  // Runs the problem for every index of the mapped dimensions.
  ffi::Error run(decltype(&tilewise_forward) work) {
    std::vector<std::int64_t> sizes(operands_[0].mapped.size(), 1);
    for (const Operand& operand : operands_) {
      for (std::size_t d = 0; d < sizes.size(); ++d)
        if (operand.mapped[d] != 1) sizes[d] = operand.mapped[d];
    }
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    if (count > 1 && fold(operands_, sizes, count, &problem_)) return run_one(work);
    std::vector<std::int64_t> index(sizes.size(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      if (const ffi::Error error = run_at(index, work); error.failure()) return error;
      for (std::size_t d = sizes.size(); d-- > 0;) {
        if (++index[d] < sizes[d]) break;
        index[d] = 0;
      }
    }
    return ffi::Error::Success();
  }

 private:
  ffi::Error run_at(const std::vector<std::int64_t>& index, decltype(&tilewise_forward) work) {
    for (const Operand& operand : operands_) {
      problem_.*operand.field->tensor = operand.tensor;
      if (operand.bytes > 0)
        (problem_.*operand.field->tensor).data = operand.data() + operand.offset(index);
    }
    return run_one(work);
  }

  ffi::Error run_one(decltype(&tilewise_forward) work) {
    tilewise_executor executor;
    tilewise_executor_init(&executor);
    executor.stream = place_.stream;
    const tilewise_status status =
        work(&problem_, place_.device == TILEWISE_CUDA ? &executor : nullptr);
    switch (status) {
      case TILEWISE_OK:
        return ffi::Error::Success();
      case TILEWISE_INVALID_ARGUMENT:
        return invalid(tilewise_last_error());
      case TILEWISE_UNSUPPORTED:
        return ffi::Error(ffi::ErrorCode::kUnimplemented, tilewise_last_error());
      case TILEWISE_NO_MEMORY:
        return ffi::Error(ffi::ErrorCode::kResourceExhausted, tilewise_last_error());
      default:
        return ffi::Error::Internal(tilewise_last_error());
    }
  }

  tilewise_problem problem_;
  Place place_;
  std::vector<Operand> operands_;
};

// Removes and returns the first name of "q k v".
std::string_view next_name(std::string_view* names) {
  const std::size_t end = std::min(names->find(' '), names->size());
  const std::string_view name = names->substr(0, end);
  names->remove_prefix(std::min(end + 1, names->size()));
  return name;
}

ffi::Error run(decltype(&tilewise_forward) work, const Attributes& attributes, const Place& place,
               ffi::RemainingArgs inputs, ffi::RemainingRets outputs) {
  const DefaultFloatingPoint scope;
  Call call(attributes, place);
  std::size_t mapped_rank = 0;
  std::string_view names = attributes.inputs;  // the first one is q
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto buffer = inputs.get<ffi::AnyBuffer>(i);
    if (!buffer) return buffer.error();
    if (i == 0)
      mapped_rank = buffer->dimensions().size() - static_cast<std::size_t>(attributes.rank_q);
    if (const ffi::Error error = call.add(next_name(&names), *buffer, mapped_rank); error.failure())
      return error;
  }
  names = attributes.outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    auto buffer = outputs.get<ffi::AnyBuffer>(i);
    if (!buffer) return buffer.error();
    if (const ffi::Error error = call.add(next_name(&names), **buffer, mapped_rank);
        error.failure())
      return error;
  }
  return call.run(work);
}

ffi::Error forward_cpu(Attributes attributes, ffi::RemainingArgs inputs,
                       ffi::RemainingRets outputs) {
  return run(tilewise_forward, attributes, {}, inputs, outputs);
}
ffi::Error backward_cpu(Attributes attributes, ffi::RemainingArgs inputs,
                        ffi::RemainingRets outputs) {
  return run(tilewise_backward, attributes, {}, inputs, outputs);
}
ffi::Error forward_cuda(void* stream, std::int32_t device, Attributes attributes,
                        ffi::RemainingArgs inputs, ffi::RemainingRets outputs) {
  return run(tilewise_forward, attributes, {TILEWISE_CUDA, device, stream}, inputs, outputs);
}
ffi::Error backward_cuda(void* stream, std::int32_t device, Attributes attributes,
                         ffi::RemainingArgs inputs, ffi::RemainingRets outputs) {
  return run(tilewise_backward, attributes, {TILEWISE_CUDA, device, stream}, inputs, outputs);
}

auto on_cpu() { return ffi::Ffi::Bind().Attrs<Attributes>().RemainingArgs().RemainingRets(); }
auto on_cuda() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Attrs<Attributes>()
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace
}  // namespace tilewise::python

#define TILEWISE_HANDLER(name, function, binding)                  \
  extern "C" TILEWISE_API XLA_FFI_Error* name(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, tilewise::python::function, tilewise::python::binding)

TILEWISE_HANDLER(tilewise_jax_forward_cpu, forward_cpu, on_cpu());
TILEWISE_HANDLER(tilewise_jax_backward_cpu, backward_cpu, on_cpu());
TILEWISE_HANDLER(tilewise_jax_forward_cuda, forward_cuda, on_cuda());
TILEWISE_HANDLER(tilewise_jax_backward_cuda, backward_cuda, on_cuda());
