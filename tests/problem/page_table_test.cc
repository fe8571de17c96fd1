// What validation refuses of a paged cache.
#include <gtest/gtest.h>

#include "problem/sample.h"

namespace tilewise::tests {
namespace {

const Fault kPageFaults[] = {
    {"page_table_backward",
     kBackward,
     ALTER(sample.page()),
     {"page_table", "backward"},
     TILEWISE_UNSUPPORTED},
    {"page_table_rank",
     kForward,
     ALTER(sample.page(); p.page_table.rank = 1),
     {"page_table", "rank is 1", "2: (B, pages)"}},
    {"page_table_dtype",
     kForward,
     ALTER(sample.page(); p.page_table.dtype = TILEWISE_INT64),
     {"page_table", "int64", "int32"}},
    {"page_table_batch",
     kForward,
     ALTER(sample.page(); p.page_table.shape[0] = 3),
     {"page_table", "batch is 3", "q's 2"}},
    {"page_table_of_packed_keys",
     kForward,
     ALTER(sample.pack(); p.page_table = sample.tensor(TILEWISE_INT32, {2, 2})),
     {"k", "rank is 3", "4 with page_table"}},
    {"page_table_with_cu_seqlens_k",
     kForward,
     ALTER(sample.page(); p.cu_seqlens_k = sample.numbers({0, 3, 5}, {3})),
     {"cu_seqlens_k", "dense tensor (rank 4)"}},
    {"page_size_zero",
     kForward,
     ALTER(sample.page(); p.k.shape[1] = p.v.shape[1] = 0),
     {"k", "page size is 0", ">= 1"}},
    {"no_pages",
     kForward,
     ALTER(sample.page(); p.k.shape[0] = p.v.shape[0] = 0),
     {"k", "has 0 pages", ">= 1"}},
    {"too_many_pages",
     kForward,
     ALTER(sample.page(); p.page_table.shape[1] = INT64_MAX / 2; p.page_table.strides[1] = 0),
     {"page_table", "pages of 3 keys", "< 2^63"}},
    {"page_table_null",
     kForward,
     ALTER(sample.page(); p.page_table.data = nullptr),
     {"page_table"}},
    {"page_table_on_another_device",
     kForward,
     ALTER(sample.page(); p.page_table.device = TILEWISE_CUDA),
     {"page_table", "device is cuda:0", "cpu"}},
    {"page_table_shared_with_out",
     kForward,
     ALTER(sample.page(); p.out.data = p.page_table.data),
     {"out", "shares memory with page_table"}},
    {"page_negative",
     kForward,
     ALTER(sample.page(); sample.set_page(2, -1)),
     {"page_table[1][0]", "is -1", "between 0 and 3"}},
    {"page_too_large",
     kForward,
     ALTER(sample.page(); sample.set_page(1, 4)),
     {"page_table[0][1]", "is 4", "between 0 and 3"}},
    {"page_in_use_too_large",
     kForward,
     ALTER(sample.page(); p.seqused_k = sample.numbers({4, 3}, {2}); sample.set_page(1, 4)),
     {"page_table[0][1]", "is 4", "between 0 and 3"}},
    {"more_keys_than_pages",
     kForward,
     ALTER(sample.page(); p.seqused_k = sample.numbers({7, 3}, {2})),
     {"seqused_k[0]", "is 7", "between 0 and 6"}},
};

TEST(PageTable, FaultsNameArgumentValueAndLimit) {
  for (const Fault& fault : kPageFaults) {
    SCOPED_TRACE(fault.name);
    expect_fault(fault);
  }
}

// The entries after the end of a sequence are never looked at.
TEST(PageTable, PagesAfterTheEndOfASequenceMayBeAnything) {
  Sample sample;
  sample.page();
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
  sample.request.seqused_k = sample.numbers({3, 0}, {2});
  for (const std::int64_t entry : {1, 2, 3}) sample.set_page(entry, INT32_MIN);
  EXPECT_EQ(run(kForward, sample.request), TILEWISE_OK) << tilewise_last_error();
}

}  // namespace
}  // namespace tilewise::tests
