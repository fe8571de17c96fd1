// Appends to a cache for C++20: a header-only layer over tilewise_append.h. It adds no behaviour of
// its own.
//
//   tilewise::Append step;
//   step.k_cache = tilewise::tensor(k_cache.data(), TILEWISE_BF16, {batch, room, heads, dim});
//   ...
//   tilewise::append(step);  // throws tilewise::Error
#ifndef TILEWISE_TILEWISE_APPEND_HPP_
#define TILEWISE_TILEWISE_APPEND_HPP_

#include <tilewise/tilewise_append.h>

#include <tilewise/tilewise.hpp>

namespace tilewise {

// A tilewise_append with its defaults set.
struct Append : tilewise_append {
  Append() { tilewise_append_init(this); }
};

// Writes new keys and values into a cache, and rotates queries. See tilewise_append_run().
inline void append(const tilewise_append& append, const tilewise_executor* executor = nullptr) {
  check(tilewise_append_run(&append, executor));
}

}  // namespace tilewise

#endif  // TILEWISE_TILEWISE_APPEND_HPP_
