// Quantisation for C++20: a header-only layer over tilewise_quantise.h. It adds no behaviour of its
// own.
//
//   tilewise::Quantisation task;
//   task.input = tilewise::tensor(std::span(k), {batch, length, heads, dim});
//   task.output = tilewise::tensor(codes.data(), TILEWISE_E4M3, {batch, length, heads, dim});
//   task.descale = tilewise::tensor(std::span(scales), {batch, heads, (length + 127) / 128});
//   tilewise::quantise(task);  // throws tilewise::Error
#ifndef TILEWISE_TILEWISE_QUANTISE_HPP_
#define TILEWISE_TILEWISE_QUANTISE_HPP_

#include <tilewise/tilewise_quantise.h>

#include <tilewise/tilewise.hpp>

namespace tilewise {

// A tilewise_quantisation with its defaults set.
struct Quantisation : tilewise_quantisation {
  Quantisation() { tilewise_quantisation_init(this); }
};

// Stores rows in fp8. See tilewise_quantise().
inline void quantise(const Quantisation& quantisation,
                     const tilewise_executor* executor = nullptr) {
  check(tilewise_quantise(&quantisation, executor));
}

}  // namespace tilewise

#endif  // TILEWISE_TILEWISE_QUANTISE_HPP_
