// The page table of an instance with a paged cache: keys are scattered over shuffled pages, and
// everything that no sequence uses is poisoned.
#include <algorithm>
#include <numeric>

#include "math/integer.h"
#include "verify/instance.h"

namespace tilewise::verify {
namespace {

// What a table may hold after the end of a sequence, where no kernel may look.
constexpr std::int64_t kGarbage[] = {-1, INT32_MIN, INT32_MAX, 1 << 30};

// Returns 0 .. count - 1 in a random order.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  Random random(seed);
  for (std::size_t i = numbers.size(); i > 1; --i) {
    const std::int64_t other = random.between(0, static_cast<std::int64_t>(i) - 1);
    std::swap(numbers[i - 1], numbers[static_cast<std::size_t>(other)]);
  }
  return numbers;
}

}  // namespace

std::int64_t Instance::keys_in_use(std::int64_t b) const {
  if (case_.used.empty()) return case_.k_len;
  return math::clamp(case_.used[static_cast<std::size_t>(b)], 0, case_.k_len);
}

void Instance::add_page_table() {
  if (case_.page_size == 0) return;
  const std::int64_t columns = case_.k_len / case_.page_size;
  const std::vector<std::int64_t> pages = shuffled(page_count(case_), case_.seed + 17);
  std::vector<std::int64_t> table;
  for (std::int64_t b = 0; b < case_.batch; ++b) {
    for (std::int64_t p = 0; p < columns; ++p) {
      const bool in_use = p * case_.page_size < keys_in_use(b);
      const std::size_t number = table.size();
      table.push_back(in_use ? pages[number] : kGarbage[number % std::size(kGarbage)]);
    }
  }
  add_list("page_table", &tilewise_problem::page_table, table, {case_.batch, columns}, false);
}

void Instance::poison_unused_pages() {
  if (case_.page_size == 0) return;
  const std::int32_t* const table = static_cast<const std::int32_t*>(request_.page_table.data);
  const std::int64_t columns = case_.k_len / case_.page_size;
  std::vector<std::int64_t> used(static_cast<std::size_t>(page_count(case_)), 0);  // keys of a page
  for (std::int64_t b = 0; b < case_.batch; ++b) {
    for (std::int64_t p = 0; p < math::ceil_div(keys_in_use(b), case_.page_size); ++p) {
      const std::int64_t keys = std::min(case_.page_size, keys_in_use(b) - p * case_.page_size);
      used[static_cast<std::size_t>(table[b * columns + p])] = keys;
    }
  }
  const int row_axis = case_.layout == TILEWISE_BHSD ? 2 : 1;
  for (const Member member : {&tilewise_problem::k, &tilewise_problem::v}) {
    for (std::int64_t page = 0; page < page_count(case_); ++page) {
      tilewise_tensor unused = request_.*member;  // the rows of the page after those in use
      const std::int64_t keys = used[static_cast<std::size_t>(page)];
      const std::int64_t offset = page * unused.strides[0] + keys * unused.strides[row_axis];
      unused.data =
          static_cast<std::byte*>(unused.data) + offset * problem::dtype_size(case_.dtype);
      unused.shape[0] = 1;
      unused.shape[row_axis] -= keys;
      poison(unused);
    }
  }
}

}  // namespace tilewise::verify
