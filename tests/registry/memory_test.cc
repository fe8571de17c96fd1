// Garbage in memory (T06), reads at the end of a page (T19), reused workspaces (T21).
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "problem/tensors.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

// ---- T06: garbage in memory ----

TEST(GarbageMemory, InWorkspacesChangesNoBit) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (int i = 0; i < 8; ++i) {
        const Case c = verify::random_case(operation, dtype, random);
        Instance instance(c);
        give_forward_results(instance);
        for (const Kernel* kernel : kernels_for(instance)) {
          const auto expected = run_for_bits(kernel->name, instance, {nullptr, 0, 0});
          for (const int fill : {0xFF, 0x7F, 0x3C}) {
            EXPECT_EQ(run_for_bits(kernel->name, instance, {nullptr, 0, fill}), expected)
                << kernel->name << ", workspace of " << fill << ": " << describe(c);
          }
        }
      }
    }
  }
}

// ---- T19: reads at the end of a page ----

// Bytes that end where an unreadable page begins, or begin where one ends.
class PageEdge {
 public:
  PageEdge(std::size_t bytes, bool at_end) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t room = (bytes + page - 1) / page * page;
    size_ = room + 2 * page;
    void* const memory =
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(memory);
    mprotect(base_, page, PROT_NONE);
    mprotect(base_ + page + room, page, PROT_NONE);
    data_ = base_ + page + (at_end ? room - bytes : 0);
  }
  ~PageEdge() { munmap(base_, size_); }
  PageEdge(const PageEdge&) = delete;
  PageEdge& operator=(const PageEdge&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* base_;
  std::byte* data_;
  std::size_t size_;
};

// Moves every tensor of the request to the edge of a page, with its contents.
tilewise_problem move_to_page_edges(const tilewise_problem& request, bool at_end,
                                    std::vector<std::unique_ptr<PageEdge>>& pages) {
  tilewise_problem moved = request;
  for (const problem::NamedTensor& named : problem::kTensors) {
    tilewise_tensor& tensor = moved.*named.member;
    if (tensor.rank == 0) continue;
    const std::size_t bytes =
        static_cast<std::size_t>(verify::element_count(tensor) * problem::dtype_size(tensor.dtype));
    pages.push_back(std::make_unique<PageEdge>(bytes, at_end));
    if (bytes > 0) std::memcpy(pages.back()->data(), tensor.data, bytes);
    tensor.data = pages.back()->data();
  }
  return moved;
}

TEST(Bounds, NothingIsReadBeyondATensor) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (std::int64_t tail = 1; tail <= 17; ++tail) {
        Case c = make_case(operation, dtype, {1, 16 + tail, 32 + tail, 2, 1, tail});
        c.value_dim = 18 - tail;
        c.causal = tail % 2 == 0;
        c.sink = c.dlse = true;
        c.mask = {true, 4, {false, false, true, true}};
        c.bias = {tail % 3 == 0, 4, {false, true, true, true}};
        Instance instance(c);
        give_forward_results(instance);
        for (const bool at_end : {true, false}) {
          std::vector<std::unique_ptr<PageEdge>> pages;
          const tilewise_problem moved = move_to_page_edges(instance.request(), at_end, pages);
          for (const Kernel* kernel : runnable_kernels(operation, dtype)) {
            const auto expected = run_for_bits(kernel->name, instance);
            ASSERT_EQ(run_kernel(kernel->name, operation, moved), TILEWISE_OK);
            EXPECT_EQ(output_bits(operation, moved), expected)
                << kernel->name << ": " << describe(c);
          }
        }
      }
    }
  }
}

// The first entries of the table name no page, and mean the first page and the last one.
TEST(Bounds, NothingIsReadBeyondThePagesOfACache) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t page_size : {1, 3, 16, 48}) {
      for (const std::int64_t q_len : {2, 21}) {
        Case c = make_case(Operation::kForward, dtype, {2, q_len, 48, 2, 1, 17 + page_size % 7});
        c.page_size = page_size;
        c.used = {48, 37};
        c.causal = q_len == 2;
        c.layout = page_size % 2 == 0 ? TILEWISE_BHSD : TILEWISE_BSHD;
        Instance instance(c);
        std::int32_t* const table = static_cast<std::int32_t*>(instance.request().page_table.data);
        table[0] = INT32_MIN;
        if (page_size <= 16) table[1] = INT32_MAX;
        for (const bool at_end : {true, false}) {
          std::vector<std::unique_ptr<PageEdge>> pages;
          const tilewise_problem moved = move_to_page_edges(instance.request(), at_end, pages);
          for (const Kernel* kernel : host_kernels(c.operation)) {
            if (!machine_runs(*kernel, dtype)) continue;
            const auto expected = run_for_bits(kernel->name, instance);
            ASSERT_EQ(run_kernel(kernel->name, c.operation, moved), TILEWISE_OK);
            EXPECT_EQ(output_bits(c.operation, moved), expected)
                << kernel->name << ": " << describe(c);
          }
        }
      }
    }
  }
}

// ---- T21: reused workspaces ----

// One workspace serves all cases one after another. Each leaves its garbage to the next, with
// refused calls in between.
TEST(Workspace, ReuseChangesNothing) {
  TILEWISE_TRACE_SEED();
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const verify::Memory workspace(kBytes);
  Random random(run_seed() + 1);
  for (int i = 0; i < 24; ++i) {
    const Operation operation = kOperations[i % 2];
    const Case c = verify::random_case(operation, kDtypes[i / 2 % 4], random);
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : runnable_kernels(operation)) {
      // On a device each run has another workspace; tests/cuda tests its reuse.
      if (kernel->device != TILEWISE_CPU) continue;
      plan::Options options;
      options.kernel = kernel->name;
      plan::Plan plan;
      ASSERT_EQ(plan::make_plan(operation, instance.request(), options, &plan), TILEWISE_OK);
      if (static_cast<std::size_t>(plan.workspace_bytes) > kBytes) continue;
      const auto expected = run_for_bits(kernel->name, instance);
      instance.prepare(operation);
      plan::RunOptions run;
      run.workspace = workspace.data();
      run.workspace_bytes = kBytes;
      tilewise_problem refused = instance.request();
      refused.q.dtype = TILEWISE_INT32;
      EXPECT_EQ(plan::run_plan(plan, refused, run), TILEWISE_INVALID_ARGUMENT);
      ASSERT_EQ(plan::run_plan(plan, instance.request(), run), TILEWISE_OK);
      EXPECT_EQ(output_bits(operation, instance.request()), expected)
          << kernel->name << ": " << describe(c);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
