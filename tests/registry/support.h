// Shared by the tests of kernels: seeds, the kernels that this machine runs, runs on given
// executors and workspaces, results as bits.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/registry.h"
#include "support/seed.h"
#include "verify/case.h"
#include "verify/instance.h"
#include "verify/judge.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::tests {

using problem::Kernel;
using problem::Operation;
using verify::Case;
using verify::Instance;
using verify::Random;

inline constexpr Operation kOperations[] = {Operation::kForward, Operation::kBackward};
inline constexpr std::int32_t kDtypes[] = {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16,
                                           TILEWISE_FP16};
inline constexpr std::int32_t kFp8Dtypes[] = {TILEWISE_E4M3, TILEWISE_E5M2};

// Combinations for tests of properties in which kernels of 16-bit inputs differ from the others.
struct Work {
  Operation operation;
  std::int32_t dtype;
};
inline constexpr Work kAllWork[] = {
    {Operation::kForward, TILEWISE_FP64},  {Operation::kForward, TILEWISE_FP32},
    {Operation::kForward, TILEWISE_BF16},  {Operation::kForward, TILEWISE_FP16},
    {Operation::kBackward, TILEWISE_FP64}, {Operation::kBackward, TILEWISE_FP32},
    {Operation::kBackward, TILEWISE_BF16}, {Operation::kBackward, TILEWISE_FP16}};
inline constexpr Work kOperationsOfTwoWidths[] = {{Operation::kForward, TILEWISE_FP32},
                                                  {Operation::kForward, TILEWISE_BF16},
                                                  {Operation::kBackward, TILEWISE_FP32},
                                                  {Operation::kBackward, TILEWISE_BF16}};

// Returns "forward_fp32" and so on, for the names of tests.
std::string operation_and_dtype(Operation operation, std::int32_t dtype);

// True for a GPU kernel that leaves some problems to later kernels of the registry (its own tests
// say which): it may pass a case or refuse it.
bool is_partial(const Kernel& kernel);

// Returns whether the machine has an instruction set, given by its name.
bool machine_has(const std::string& target);

// False for a CPU kernel whose instruction set this machine lacks, that $TILEWISE_CPU_TARGET
// excludes, or that does not support the dtype (a matrix unit), for a GPU kernel without a GPU, and
// for partial kernels. A kernel of this library may refuse a valid problem for no other reason.
bool machine_runs(const Kernel& kernel, std::int32_t dtype);

std::vector<const Kernel*> runnable_kernels(Operation operation,
                                            std::int32_t dtype = TILEWISE_FP32);

// Leaves out the kernels that refuse the case by design, such as cuda_fp32 where keys lie in pages.
std::vector<const Kernel*> runnable_kernels(const Case& description);

// Returns the runnable kernels that work on tensors of the host.
std::vector<const Kernel*> host_kernels(Operation operation);

// Returns runnable_kernels() of the arguments, and the partial kernels that support this request
// (of tensors of the dtype).
std::vector<const Kernel*> kernels_for(Operation operation, std::int32_t dtype,
                                       const tilewise_problem& request);
std::vector<const Kernel*> kernels_for(const Instance& instance);

// Expects that a kernel passes the judge.
void expect_passes(const char* kernel, const Case& description,
                   const verify::Judge::Edit& edit = {});

// Expects that every kernel of the case's operation passes the judge.
void expect_all_pass(const Case& description, const verify::Judge::Edit& edit = {});

// Returns a case with the sizes B, Sq, Sk, H, Hk, D = Dv.
Case make_case(Operation operation, std::int32_t dtype, const std::vector<std::int64_t>& sizes);

// Makes an instance ready to run: for backward, out and lse are set to the oracle's.
void give_forward_results(Instance& instance);

struct RunSetup {
  const tilewise_executor* executor = nullptr;  // nullptr: the default pool
  std::int32_t concurrency = 0;                 // as planned; 0: the executor's, or the pool's
  int fill = 0xFF;                              // the byte that the workspace is filled with
  problem::Traffic* traffic = nullptr;          // if given, bytes that a CPU kernel moves
};

// Plans and runs the named kernel on the request as it is (on a copy, for a device's kernel).
// Returns the status.
problem::Status run_kernel(const char* kernel, Operation operation, const tilewise_problem& request,
                           const RunSetup& setup = {});

// Runs a call with `accumulate` on outputs that hold earlier results (on a copy, for a device's
// kernel).
problem::Status run_call(const char* kernel, Operation operation, const tilewise_problem& call);

// Returns the elements of the outputs of an operation in row-major order, as bits, tensor after
// tensor.
std::vector<std::uint64_t> output_bits(Operation operation, const tilewise_problem& request);
std::vector<std::uint64_t> tensor_bits(const tilewise_tensor& tensor);

// Poisons the outputs, runs, and returns their bits; fails the test if the kernel refuses.
std::vector<std::uint64_t> run_for_bits(const char* kernel, Instance& instance,
                                        const RunSetup& setup = {});

// Sets every element to value(row-major index).
template <class Function>
void set_elements(const tilewise_tensor& tensor, Function value) {
  verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    verify::write_element(tensor, offset, value(i));
  });
}

// The index of an element of a (B, S, H, width) or (T, H, width) tensor, from its row-major index.
struct RowIndex {
  std::int64_t batch, row, head, column;
};
RowIndex row_index(const tilewise_tensor& tensor, std::int32_t layout, std::int64_t number);

// An executor that runs its items in a shuffled order on `threads` threads of its own.
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
