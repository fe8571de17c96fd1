// Tables of compiled kernels for host code. A kernel is a template of a row of its table of
// configurations and, in most of them, of one of two types.
#pragma once

#include <array>
#include <utility>

namespace tilewise::cuda {

// Returns what make<row>() returns for each row.
template <int kRows, class Make>
constexpr auto instances_of(const Make& make) {
  return [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    return std::array{make.template operator()<kRow>()...};
  }
  (std::make_integer_sequence<int, kRows>());
}

// Returns what make<row, type>() returns for each row, and of each row for false and for true.
template <int kRows, class Make>
constexpr auto typed_instances_of(const Make& make) {
  return instances_of<kRows>([&]<int kRow>() {
    return std::array{make.template operator()<kRow, false>(),
                      make.template operator()<kRow, true>()};
  });
}

}  // namespace tilewise::cuda
