// What the tests of kernels share: seeds, the kernels that this machine runs, runs on given
// executors and workspaces, results as bits.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/registry.h"
#include "verify/case.h"
#include "verify/instance.h"
#include "verify/judge.h"
#include "verify/random.h"

namespace tilewise::tests {

using problem::Kernel;
using problem::Operation;
using verify::Case;
using verify::Instance;
using verify::Random;

inline constexpr Operation kOperations[] = {Operation::kForward, Operation::kBackward};
inline constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16,
                                           TILEWISE_FP16};

// For what kernels of 16-bit inputs and others do in ways of their own.
struct Work {
  Operation operation;
  std::int32_t dtype;
};
inline constexpr Work kOperationsOfTwoWidths[] = {{Operation::kForward, TILEWISE_FP32},
                                                  {Operation::kForward, TILEWISE_BF16},
                                                  {Operation::kBackward, TILEWISE_FP32},
                                                  {Operation::kBackward, TILEWISE_BF16}};

// The seed of this run: $TILEWISE_TEST_SEED, or a fresh one. Failures print it.
std::uint64_t run_seed();

// Prints the seed with every failure in its scope.
#define TILEWISE_TRACE_SEED() SCOPED_TRACE("TILEWISE_TEST_SEED=" + std::to_string(run_seed()))

// "forward_fp32", for names of tests.
std::string operation_and_dtype(Operation operation, std::int32_t dtype);

// True for a GPU kernel that leaves some problems to those behind it (its own tests say which): it
// may pass a case or refuse it.
bool is_partial(const Kernel& kernel);

// Whether an instruction set, by its name, is there.
bool machine_has(const std::string& target);

// False for a CPU kernel whose instruction set this machine lacks, that $TILEWISE_CPU_TARGET
// excludes, or that has nothing for the dtype (a matrix unit), for a GPU kernel without a GPU, and
// for partial kernels: the only reasons for which a kernel of this library may refuse a valid
// problem.
bool machine_runs(const Kernel& kernel, std::int32_t dtype);

std::vector<const Kernel*> runnable_kernels(Operation operation,
                                            std::int32_t dtype = TILEWISE_FP32);

// Those of them that take tensors of the host.
std::vector<const Kernel*> host_kernels(Operation operation);

// runnable_kernels(), and the partial ones that take this request (of tensors of the dtype).
std::vector<const Kernel*> kernels_for(Operation operation, std::int32_t dtype,
                                       const tilewise_problem& request);
std::vector<const Kernel*> kernels_for(const Instance& instance);

// The judge's verdict on every kernel of the case's operation is "passed".
void expect_all_pass(const Case& description, const verify::Judge::Edit& edit = {});

// A case of the usual size: B, Sq, Sk, H, Hk, D = Dv.
Case make_case(Operation operation, std::int32_t dtype, const std::vector<std::int64_t>& sizes);

// An instance ready to run: for backward, out and lse are the oracle's.
void give_forward_results(Instance& instance);

struct RunSetup {
  const tilewise_executor* executor = nullptr;  // nullptr: the default pool
  std::int32_t concurrency = 0;                 // as planned; 0: the executor's, or the pool's
  int fill = 0xFF;                              // byte that the workspace is filled with
};

// Plans and runs the named kernel on the request as it is (that of a device on a copy there).
// Returns the status.
problem::Status run_kernel(const char* kernel, Operation operation, const tilewise_problem& request,
                           const RunSetup& setup = {});

// The elements of the outputs of an operation in row-major order, as bits, tensor after tensor.
std::vector<std::uint64_t> output_bits(Operation operation, const tilewise_problem& request);
std::vector<std::uint64_t> tensor_bits(const tilewise_tensor& tensor);

// Poisons the outputs, runs, and returns their bits; fails the test if the kernel refuses.
std::vector<std::uint64_t> run_for_bits(const char* kernel, Instance& instance,
                                        const RunSetup& setup = {});

// The elements of a tensor in row-major order.
std::vector<double> values_of(const tilewise_tensor& tensor);

// Sets every element: value(row-major number).
template <class Function>
void set_elements(const tilewise_tensor& tensor, Function value) {
  verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    verify::write_element(tensor, offset, value(i));
  });
}

// Index of an element of a (B, S, H, width) or (T, H, width) tensor, from its row-major number.
struct RowIndex {
  std::int64_t batch, row, head, column;
};
RowIndex row_index(const tilewise_tensor& tensor, std::int32_t layout, std::int64_t number);

// An executor that gives its items in a shuffled order to `threads` threads of its own.
class ShuffledExecutor {
 public:
  ShuffledExecutor(std::int32_t threads, std::uint64_t seed);
  const tilewise_executor* get() const { return &executor_; }

 private:
  static void parallel_for(void* self, std::int64_t n, void (*fn)(void*, std::int64_t),
                           void* context);
  std::int32_t threads_;
  std::uint64_t seed_;
  tilewise_executor executor_;
};

}  // namespace tilewise::tests
