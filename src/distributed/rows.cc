#include "distributed/rows.h"

#include <cstring>

#include "cuda/rows/rows.h"
#include "math/number.h"

namespace tilewise::distributed {
namespace {

using problem::View;

constexpr std::int64_t kRowsPerItem = 64;

// Calls function(b, h, r) for every row of every head, blocks of rows side by side.
template <class Function>
void for_each_row(const Extents& extents, const tilewise_executor& executor, Function function) {
  const std::int64_t blocks = math::ceil_div(extents.rows, kRowsPerItem);
  auto block = [&](std::int64_t item) {
    const std::int64_t b = item / blocks;
    const std::int64_t first = item % blocks * kRowsPerItem;
    const std::int64_t last = math::min(first + kRowsPerItem, extents.rows);
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t h = 0; h < extents.heads; ++h) function(b, h, r);
    }
  };
  problem::parallel_for(executor, blocks * extents.batch, block);
}

template <class T>
T* element(const View& view, std::int64_t offset) {
  return static_cast<T*>(view.data) + offset;
}

// Calls function(a null pointer to the arithmetic type of the dtype).
template <class Function>
void with_arithmetic(std::int32_t dtype, Function function) {
  if (dtype == TILEWISE_FP64) {
    function(static_cast<double*>(nullptr));
  } else {
    function(static_cast<float*>(nullptr));
  }
}

template <class Function>
void with_storage(std::int32_t dtype, Function function) {
  switch (dtype) {
    case TILEWISE_FP64:
      return function(static_cast<double*>(nullptr));
    case TILEWISE_BF16:
      return function(static_cast<math::BFloat16*>(nullptr));
    case TILEWISE_FP16:
      return function(static_cast<math::Float16*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

// Elements of a row have the column stride 1.
std::size_t row_bytes(const View& view, const Extents& extents) {
  return static_cast<std::size_t>(extents.width * problem::dtype_size(view.dtype));
}

cuda::RowExtents on_device(const Extents& extents) {
  return {extents.batch, extents.heads, extents.rows, extents.width};
}

}  // namespace

void fill_rows(const View& view, const Extents& extents, double value, Worker& worker) {
  if (worker.on_device()) {
    return worker.start([&] {
      return cuda::fill_rows(worker.device_index(), view, on_device(extents), value,
                             worker.stream());
    });
  }
  const tilewise_executor& executor = worker.executor();
  with_arithmetic(view.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_each_row(extents, executor, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
      for (std::int64_t c = 0; c < extents.width; ++c)
        *element<T>(view, view.offset(b, h, r, c)) = static_cast<T>(value);
    });
  });
}

void copy_rows(const View& from, const View& to, const Extents& extents, Worker& worker) {
  if (worker.on_device()) {
    return worker.start([&] {
      return cuda::copy_rows(worker.device_index(), from, to, on_device(extents), worker.stream());
    });
  }
  const tilewise_executor& executor = worker.executor();
  if (from.dtype == to.dtype) {
    const std::int64_t size = problem::dtype_size(from.dtype);
    for_each_row(extents, executor, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
      std::memcpy(element<char>(to, to.offset(b, h, r) * size),
                  element<char>(from, from.offset(b, h, r) * size), row_bytes(from, extents));
    });
    return;
  }
  with_arithmetic(from.dtype, [&](auto* source) {
    with_storage(to.dtype, [&](auto* target) {
      using Source = std::remove_pointer_t<decltype(source)>;
      using Target = std::remove_pointer_t<decltype(target)>;
      for_each_row(extents, executor, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
        const Source* const source_row = element<Source>(from, from.offset(b, h, r));
        Target* const target_row = element<Target>(to, to.offset(b, h, r));
        for (std::int64_t c = 0; c < extents.width; ++c) math::store(source_row[c], target_row + c);
      });
    });
  });
}

void add_rows(const View& from, const View& to, const Extents& extents, Worker& worker) {
  if (worker.on_device()) {
    return worker.start([&] {
      return cuda::add_rows(worker.device_index(), from, to, on_device(extents), worker.stream());
    });
  }
  const tilewise_executor& executor = worker.executor();
  with_arithmetic(to.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_each_row(extents, executor, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
      const T* const from_row = element<T>(from, from.offset(b, h, r));
      T* const to_row = element<T>(to, to.offset(b, h, r));
      for (std::int64_t c = 0; c < extents.width; ++c) to_row[c] += from_row[c];
    });
  });
}

}  // namespace tilewise::distributed
