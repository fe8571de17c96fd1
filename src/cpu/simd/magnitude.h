// Exact powers of two that keep products away from denormal numbers. A multiply-add takes a hundred
// cycles where an operand or its sum is denormal. Operands are therefore multiplied by a power of
// two that their own magnitude decides, and results are divided by it; neither rounds.
#pragma once

#include "cpu/simd/packing.h"
#include "math/exp2.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Exponents of T. Operands whose largest number is below 2^kSmall are raised; 2^kLift makes
// every denormal number normal; sums must stay below 2^kMost, as those of numbers below 2^kLarge
// do.
template <class T>
struct Exponents {
  static constexpr int kSmall = sizeof(T) == 8 ? -400 : -40;
  static constexpr int kLift = sizeof(T) == 8 ? 53 : 24;
  static constexpr int kMost = sizeof(T) == 8 ? 1022 : 126;
  static constexpr int kLarge = sizeof(T) == 8 ? 500 : 60;
};

// A unit of at most 2^(kMost - kDivisionRoom) leaves room for another division, by a sum of probs.
inline constexpr int kDivisionRoom = 26;

template <class T>
TILEWISE_INLINE T exact_power(int exponent) {
  return static_cast<T>(math::exp2(static_cast<double>(exponent)));
}

// The largest |x| of the numbers that were added. Their bits are compared: infinity is larger than
// any number, and NaN is larger than infinity.
template <class T>
class Largest {
  using Word = typename BitsOf<T>::Word;
  using Bits = typename Registers<T>::Bits;

 public:
  TILEWISE_INLINE void add(Vec<T> x) {
    const Bits absolute = Bits(x.v) & BitsOf<T>::kAbsolute;
    lanes_ = absolute > lanes_ ? absolute : lanes_;
  }
  TILEWISE_INLINE bool exceeds(T limit) const {
    return any_lane(Mask<T>{lanes_ > __builtin_bit_cast(Word, limit)});
  }
  TILEWISE_INLINE T value() const {
    Word largest = 0;
    for (int i = 0; i < Vec<T>::kLanes; ++i)
      largest = math::max(largest, static_cast<Word>(lanes_[i]));
    return __builtin_bit_cast(T, largest);
  }

 private:
  Bits lanes_ = {};
};

// The numbers of some rows: the largest |x|, which is NaN or infinity if one of them is, and
// whether any is denormal.
template <class T>
struct Magnitude {
  T largest;
  bool has_denormals;
};

// Adds up the magnitude of numbers.
template <class T>
class Measure {
  using Bits = typename Registers<T>::Bits;

 public:
  TILEWISE_INLINE void add(Vec<T> x) {
    const Bits absolute = Bits(x.v) & BitsOf<T>::kAbsolute;
    const Bits smallness = SmallnessOf<T>::of(absolute);
    largest_ = absolute > largest_ ? absolute : largest_;
    smallest_ = smallness < smallest_ ? smallness : smallest_;
  }
  TILEWISE_INLINE Magnitude<T> value() const {
    typename BitsOf<T>::Word largest = 0;
    for (int i = 0; i < Vec<T>::kLanes; ++i)
      largest = math::max(largest, static_cast<typename BitsOf<T>::Word>(largest_[i]));
    return {__builtin_bit_cast(T, largest), any_lane(Mask<T>{smallest_ < SmallnessOf<T>::kLimit})};
  }

 private:
  Bits largest_ = {};
  Bits smallest_ = Bits{} + BitsOf<T>::kAbsolute;
};

template <class T, class S>
TILEWISE_INLINE void measure_row(const S* from, std::int64_t width, Measure<T>& measure) {
  std::int64_t c = 0;
  for (; c + Vec<T>::kLanes <= width; c += Vec<T>::kLanes) measure.add(load_converted<T>(from + c));
  for (; c < width; ++c) measure.add(Vec<T>(math::load<T>(from[c])));
}

template <class T>
Magnitude<T> measure_rows(const RowBlock& rows) {
  Magnitude<T> magnitude;
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const RowAddresses<S> address(rows);
    Measure<T> measure;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      if (rows.count >= kFarRows) prefetch_later_row(rows, address, r);
      measure_row(address[r], rows.width, measure);
    }
    magnitude = measure.value();
  });
  return magnitude;
}

// The largest finite |x|, for rows of which some are not finite.
template <class T>
T largest_finite(const RowBlock& rows) {
  T result = T(0);
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const RowAddresses<S> address(rows);
    Largest<T> largest;
    const auto add = [&](Vec<T> x) { largest.add(select(x - x == Vec<T>(T(0)), x, Vec<T>(T(0)))); };
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const S* const from = address[r];
      std::int64_t c = 0;
      for (; c + Vec<T>::kLanes <= rows.width; c += Vec<T>::kLanes)
        add(load_converted<T>(from + c));
      for (; c < rows.width; ++c) add(Vec<T>(math::load<T>(from[c])));
    }
    result = largest.value();
  });
  return result;
}

// Multiplies rows by a factor, into `stage` (count x width), where they may be already.
template <class T>
Rows<T> scale_rows(Rows<T> from, const RowBlock& rows, T factor, T* stage) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* const row = from.data + r * from.stride;
    T* const to = stage + r * rows.width;
    std::int64_t c = 0;
    for (; c + Vec<T>::kLanes <= rows.width; c += Vec<T>::kLanes)
      (lifts_denormals(factor) ? multiply_denormals(Vec<T>::load(row + c), factor)
                               : Vec<T>::load(row + c) * Vec<T>(factor))
          .store(to + c);
    for (; c < rows.width; ++c) to[c] = row[c] * factor;
  }
  return {stage, rows.width};
}

template <class T>
Rows<T> stage_scaled_rows(const RowBlock& rows, T factor, T* stage) {
  const Rows<T> staged = stage_rows<T>(rows, stage);
  return factor == T(1) ? staged : scale_rows<T>(staged, rows, factor, stage);
}

// Divides scores by the units of their operands. Results below the normal numbers become 0: times
// a scale below 2^60 they differ from 0 by less than the rounding of the softmax. Under a larger
// scale operands have no units (scores_have_units).
template <class T, int kWidth>
void divide_scores(std::int64_t t_count, T k_unit, T q_unit, T* scores) {
  if (k_unit == T(1) && q_unit == T(1)) return;
  const T smallest = exact_power<T>(-Exponents<T>::kMost);
  const T product = (T(1) / k_unit) * (T(1) / q_unit);
  const Vec<T> factor(product < smallest ? smallest : product);
  const Vec<T> least = Vec<T>(smallest) / factor;
  for (std::int64_t at = 0; at < t_count * kWidth; at += Vec<T>::kLanes) {
    const Vec<T> score = Vec<T>::load(scores + at);
    // Selected first: the multiplication must not meet a denormal number.
    (select(absolute(score) < least, Vec<T>(T(0)), score) * factor).store(scores + at);
  }
}

// Returns the least e with |x| < 2^e: at most kMost + 2, which stands for NaN and infinity too.
template <class T>
TILEWISE_INLINE int exponent_above(T x) {
  if (!math::is_finite(x)) return Exponents<T>::kMost + 2;
  return x == T(0) ? -2 * Exponents<T>::kMost : __builtin_ilogb(static_cast<double>(x)) + 1;
}

TILEWISE_INLINE int exponent_above(std::int64_t count) {
  return exponent_above(static_cast<double>(count));
}

// Returns the exponent of the factor for operands of this magnitude: 0 for ordinary ones.
//
// room: the exponent that the largest operand may have after it
template <class T>
TILEWISE_INLINE int raising_exponent(const Magnitude<T>& operands, int room) {
  const int above = exponent_above(operands.largest);
  if (operands.largest == T(0)) return 0;
  const int wanted = above < Exponents<T>::kSmall ? -above
                     : operands.has_denormals     ? Exponents<T>::kLift
                                                  : 0;
  return math::clamp(math::min(wanted, room - above), 0, Exponents<T>::kMost);
}

// The power of two that makes products with rows of small numbers normal; 1 for other rows.
template <class T>
TILEWISE_INLINE T unit_of_rows(const Magnitude<T>& magnitude, std::int64_t width) {
  const int exponent = raising_exponent(magnitude, -exponent_above(width) - 2);
  return exponent == 0 ? T(1) : exact_power<T>(exponent);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
