// Degenerate sizes (T08), sizes beyond 32 bits (T09), layouts and strides (T11), unusual head
// dimensions and alignments (T13).
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "problem/tensors.h"
#include "problem/validate.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

using verify::Storage;

// ---- T08: degenerate sizes ----

TEST(Sizes, OfZeroAndOneAreComputed) {
  TILEWISE_TRACE_SEED();
  const std::vector<std::int64_t> kSizes[] = {
      {0, 5, 7, 2, 1, 8}, {2, 0, 7, 2, 1, 8}, {2, 5, 0, 2, 1, 8}, {2, 0, 0, 2, 1, 8},
      {2, 5, 7, 0, 0, 8}, {0, 0, 0, 0, 0, 8}, {2, 5, 7, 0, 3, 8}, {1, 1, 1, 1, 1, 1}};
  for (const auto& [operation, dtype] : kOperationsOfTwoWidths) {
    for (const auto& sizes : kSizes) {
      for (const bool packed : {false, true}) {
        Case c = make_case(operation, dtype, sizes);
        c.q_packed = c.k_packed = packed;
        if (packed) c.q_lengths.assign(static_cast<std::size_t>(c.batch), c.q_len);
        if (packed) c.k_lengths.assign(static_cast<std::size_t>(c.batch), c.k_len);
        c.sink = c.dlse = c.causal = true;
        Instance instance(c);
        give_forward_results(instance);
        tilewise_problem request = instance.request();
        for (const problem::NamedTensor& named : problem::kTensors) {
          if (verify::element_count(request.*named.member) == 0) {
            (request.*named.member).data = nullptr;  // there is no element to point to
          }
        }
        for (const Kernel* kernel : kernels_for(operation, dtype, request)) {
          instance.prepare(operation);
          ASSERT_EQ(run_kernel(kernel->name, operation, request), TILEWISE_OK)
              << kernel->name << ": " << problem::message() << describe(c);
          for (const auto member : {&tilewise_problem::out, &tilewise_problem::dq,
                                    &tilewise_problem::dk, &tilewise_problem::dv}) {
            for (const double x : verify::numbers_of(request.*member)) ASSERT_FALSE(std::isnan(x));
          }
        }
      }
    }
  }
}

TEST(Sizes, AHeadDimensionOfZeroIsAnError) {
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_FP32, {1, 2, 2, 1, 1, 4});
    Instance instance(c);
    tilewise_problem request = instance.request();
    request.q.shape[3] = request.k.shape[3] = 0;
    EXPECT_EQ(run_kernel("three_pass", operation, request), TILEWISE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(problem::message()).find("D is 0"), std::string::npos)
        << problem::message();
  }
}

// ---- T09: sizes beyond 32 bits ----

// Address space without memory: pages appear when they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (valid()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool valid() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

// Spreads the tensors of a small problem over more than 2^31 elements along one axis. All of them
// share one range of addresses, so that a device has memory for their copies.
class Spread {
 public:
  // Returns a null tensor if there is no address space.
  tilewise_tensor operator()(const tilewise_tensor& tensor, int axis) {
    constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 96;
    constexpr std::int64_t kRoom = 1 << 16;  // bytes of a tensor on one side
    constexpr std::int64_t kTensors = 16;
    constexpr std::int64_t kLargest = sizeof(double);
    tilewise_tensor spread = tensor;
    spread.strides[axis] = kFar;
    const std::int64_t bytes = (tensor.shape[axis] - 1) * kFar * kLargest + kTensors * kRoom;
    if (memory_ == nullptr)
      memory_ = std::make_unique<SparseMemory>(static_cast<std::size_t>(bytes));
    if (!memory_->valid()) return {};
    spread.data = static_cast<std::byte*>(memory_->data()) + kRoom * used_++;
    const std::vector<double> values = verify::numbers_of(tensor);
    set_elements(spread, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
    return spread;
  }

 private:
  std::unique_ptr<SparseMemory> memory_;
  std::int64_t used_ = 0;
};

TEST(LargeSizes, StridesMayExceed32Bits) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (int axis = 0; axis < 3; ++axis) {
        Case c = make_case(operation, dtype, {3, 3, 3, 3, 3, 8});
        c.causal = true;
        Instance instance(c);
        give_forward_results(instance);
        Spread spread;
        tilewise_problem far = instance.request();
        for (const auto member :
             {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
              &tilewise_problem::out, &tilewise_problem::dout, &tilewise_problem::dq,
              &tilewise_problem::dk, &tilewise_problem::dv}) {
          if ((far.*member).rank == 0) continue;
          far.*member = spread(far.*member, axis);
          ASSERT_NE((far.*member).data, nullptr) << "no address space for the test";
        }
        for (const Kernel* kernel : kernels_for(operation, dtype, far)) {
          const auto expected = run_for_bits(kernel->name, instance);
          ASSERT_EQ(run_kernel(kernel->name, operation, far), TILEWISE_OK) << problem::message();
          EXPECT_EQ(output_bits(operation, far), expected) << kernel->name << ", axis " << axis;
        }
      }
    }
  }
}

// The rows of a mask and a bias are 2^31 elements apart.
TEST(LargeSizes, StridesOfMaskAndBiasMayExceed32Bits) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_FP32, {1, 3, 40, 2, 1, 8});
    c.bias = {true, 2, {true, true, true, true}};
    Instance instance(c);
    give_forward_results(instance);
    Spread spread;
    tilewise_problem far = instance.request();
    far.bias = spread(far.bias, 0);
    if (far.dbias.rank != 0) far.dbias = spread(far.dbias, 0);
    ASSERT_NE(far.bias.data, nullptr) << "no address space for the test";
    for (const Kernel* kernel : runnable_kernels(operation)) {
      const auto expected = run_for_bits(kernel->name, instance);
      ASSERT_EQ(run_kernel(kernel->name, operation, far), TILEWISE_OK) << problem::message();
      EXPECT_EQ(output_bits(operation, far), expected) << kernel->name;
    }
  }
}

// Tests Sk = 65537 and Sq = 65537 with a mask, 70000 sequences, and 70000 heads.
TEST(LargeSizes, CountsMayExceed16Bits) {
  TILEWISE_TRACE_SEED();
  std::vector<Case> cases;
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_FP32, {1, 3, 65537, 1, 1, 4});
    c.mask = {true, 2, {true, true, true, true}};
    c.causal = true;
    cases.push_back(c);
    std::swap(c.q_len, c.k_len);
    cases.push_back(c);
    cases.push_back(make_case(operation, TILEWISE_FP16, {70000, 1, 2, 1, 1, 3}));
    cases.push_back(make_case(operation, TILEWISE_FP16, {1, 1, 2, 70000, 35000, 3}));
  }
  for (const Case& c : cases) expect_all_pass(c);
}

// All 2^22 keys are equal, so that the answer is known. Keys and values are one expanded row.
TEST(LargeSizes, MillionsOfEqualKeysGiveTheirValue) {
  constexpr std::int64_t kCacheKeys = std::int64_t{1} << 22;
  Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, 2, 1, 1, 1, 4});
  c.causal = true;
  Instance instance(c);
  tilewise_problem request = instance.request();
  set_elements(request.q, [](std::int64_t) { return 1.0; });
  set_elements(request.k, [](std::int64_t) { return 0.5; });
  set_elements(request.v, [](std::int64_t) { return 3.0; });
  for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
    (request.*member).shape[1] = kCacheKeys;
    (request.*member).strides[1] = 0;
  }
  for (const Kernel* kernel : runnable_kernels(Operation::kForward)) {
    instance.prepare(Operation::kForward);
    ASSERT_EQ(run_kernel(kernel->name, Operation::kForward, request), TILEWISE_OK);
    for (const double x : verify::numbers_of(request.out))
      EXPECT_NEAR(x, 3.0, 1e-5) << kernel->name;
    const std::vector<double> lse = verify::numbers_of(request.lse);
    EXPECT_NEAR(lse[0], 1.0 + std::log(static_cast<double>(kCacheKeys - 1)), 1.6e-4)
        << kernel->name;
    EXPECT_NEAR(lse[1], 1.0 + std::log(static_cast<double>(kCacheKeys)), 1.6e-4) << kernel->name;
  }
}

// ---- T11: layouts and strides ----

// Copies the floating inputs (and for backward out and lse) by their indices, not by their
// addresses.
void copy_inputs(const Instance& from, Instance& to) {
  const auto copy = [&](tilewise_tensor tilewise_problem::*member) {
    const tilewise_tensor& source = from.request().*member;
    const tilewise_tensor& target = to.request().*member;
    if (source.rank == 0) return;
    const std::int32_t source_layout = from.request().layout;
    const bool packed = target.rank == 3;
    const std::int64_t rows = source.shape[source_layout == TILEWISE_BHSD ? 2 : 1];
    verify::for_each_element(source, [&](std::int64_t i, std::int64_t offset) {
      RowIndex at = row_index(source, source_layout, i);
      if (packed) {
        at.row += at.batch * rows;
        at.batch = 0;
      }
      const bool heads_first = to.request().layout == TILEWISE_BHSD && !packed;
      const int first = packed ? 0 : 1;
      const std::int64_t place = (packed ? 0 : at.batch * target.strides[0]) +
                                 at.row * target.strides[heads_first ? 2 : first] +
                                 at.head * target.strides[heads_first ? 1 : first + 1] + at.column;
      verify::write_element(target, place, verify::read_element(source, offset));
    });
  };
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::dout}) {
    copy(member);
  }
}

// Returns the bits of a row-like tensor in the order (batch or none, row, head, column).
std::vector<std::uint64_t> bits_by_meaning(const tilewise_tensor& tensor, std::int32_t layout) {
  tilewise_tensor view = tensor;
  if (tensor.rank == 4 && layout == TILEWISE_BHSD) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  }
  return tensor_bits(view);
}

std::vector<std::vector<std::uint64_t>> results_by_meaning(const Instance& instance) {
  std::vector<std::vector<std::uint64_t>> results;
  for (const auto member : {&tilewise_problem::out, &tilewise_problem::dq, &tilewise_problem::dk,
                            &tilewise_problem::dv}) {
    results.push_back(bits_by_meaning(instance.request().*member, instance.request().layout));
  }
  return results;
}

std::vector<Case> same_case_in_other_layouts(const Case& contiguous) {
  std::vector<Case> cases;
  for (const std::int32_t layout : {TILEWISE_BSHD, TILEWISE_BHSD}) {
    for (const Storage storage :
         {Storage::kContiguous, Storage::kPadded, Storage::kTransposed, Storage::kInterleaved}) {
      cases.push_back(contiguous);
      cases.back().layout = layout;
      cases.back().storage = storage;
    }
  }
  for (const Storage storage : {Storage::kContiguous, Storage::kPadded, Storage::kInterleaved}) {
    Case packed = contiguous;
    packed.q_packed = packed.k_packed = true;
    packed.q_lengths.assign(static_cast<std::size_t>(packed.batch), packed.q_len);
    packed.k_lengths = packed.q_lengths;
    packed.storage = storage;
    cases.push_back(packed);
  }
  return cases;
}

TEST(Layouts, LayoutsAndStridesChangeNoBit) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Case contiguous = make_case(operation, dtype, {2, 53, 53, 4, 2, 40});
      contiguous.causal = true;
      contiguous.deterministic = true;  // a GPU adds to dQ in any order otherwise
      Instance plain(contiguous);
      give_forward_results(plain);
      for (const Case& c : same_case_in_other_layouts(contiguous)) {
        Instance other(c);
        copy_inputs(plain, other);
        give_forward_results(other);
        for (const Kernel* kernel : kernels_for(other)) {
          run_for_bits(kernel->name, plain);
          run_for_bits(kernel->name, other);
          EXPECT_EQ(results_by_meaning(other), results_by_meaning(plain))
              << kernel->name << ": " << describe(c);
        }
      }
    }
  }
}

// K, V and dO with stride 0, expanded over batch and heads, give the same result as their copies.
TEST(Layouts, ExpandedInputsEqualTheirCopies) {
  TILEWISE_TRACE_SEED();
  for (const auto& [operation, dtype] : kOperationsOfTwoWidths) {
    Case c = make_case(operation, dtype, {3, 40, 50, 4, 2, 24});
    Instance instance(c);
    const std::vector<tilewise_tensor tilewise_problem::*> members = {
        &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dout};
    for (const auto member : members) {  // every batch and head is like the first
      const tilewise_tensor& tensor = instance.request().*member;
      verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
        const RowIndex at = row_index(tensor, TILEWISE_BSHD, i);
        const std::int64_t first = at.row * tensor.strides[1] + at.column;
        verify::write_element(tensor, offset, verify::read_element(tensor, first));
      });
    }
    give_forward_results(instance);
    tilewise_problem expanded = instance.request();
    for (const auto member : members) {
      (expanded.*member).strides[0] = 0;
      (expanded.*member).strides[2] = 0;
    }
    for (const Kernel* kernel : kernels_for(operation, dtype, expanded)) {
      const auto expected = run_for_bits(kernel->name, instance);
      instance.prepare(operation);
      ASSERT_EQ(run_kernel(kernel->name, operation, expanded), TILEWISE_OK) << problem::message();
      EXPECT_EQ(output_bits(operation, expanded), expected) << kernel->name;
    }
  }
}

// ---- T13: unusual head dimensions and alignments ----

TEST(Layouts, UnusualHeadDimensionsKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int64_t dim : {1, 2, 3, 72, 96, 520}) {
      for (const std::int64_t value_dim : {1, 5, 520}) {
        Case c = make_case(operation, TILEWISE_BF16, {1, 18, 20, 2, 1, dim});
        c.value_dim = value_dim;
        expect_all_pass(c);
      }
    }
  }
}

// Data need not be aligned for a vector; data that is not aligned for an element is refused.
TEST(Layouts, PointersNeedOnlyTheAlignmentOfAnElement) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      const std::int64_t size = problem::dtype_size(dtype);
      Case c = make_case(operation, dtype, {1, 20, 37, 2, 1, 16});
      Instance instance(c);
      give_forward_results(instance);
      instance.prepare(operation);
      const auto untouched = output_bits(operation, instance.request());
      for (std::int64_t skip = 1; skip < 16; ++skip) {
        verify::Memory memory(std::size_t{1} << 16);
        tilewise_problem moved = instance.request();
        tilewise_tensor& k = moved.k;
        const std::size_t bytes = static_cast<std::size_t>(verify::element_count(k) * size);
        std::memcpy(memory.data() + skip, k.data, bytes);
        k.data = memory.data() + skip;
        for (const Kernel* kernel : runnable_kernels(operation, dtype)) {
          const auto expected = run_for_bits(kernel->name, instance);
          const problem::Status status = run_kernel(kernel->name, operation, moved);
          if (skip % size == 0) {
            EXPECT_EQ(status, TILEWISE_OK) << problem::message();
          } else {
            EXPECT_EQ(status, TILEWISE_INVALID_ARGUMENT);
            EXPECT_EQ(std::string(problem::message()).rfind("k: ", 0), 0u) << problem::message();
          }
          EXPECT_EQ(output_bits(operation, moved), skip % size == 0 ? expected : untouched)
              << kernel->name << " skip " << skip;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
