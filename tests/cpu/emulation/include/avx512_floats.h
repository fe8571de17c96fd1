// The floating-point and bf16 part of the emulated AVX-512 (immintrin.h, which includes this).
#pragma once
#pragma GCC system_header  // names with an underscore

namespace tilewise::emulation {
namespace {

// ---- floats ----

// Applies f to both halves.
template <class Vector, class Half, class Function, class... Operands>
TILEWISE_EMULATED Vector by_halves(Function f, const Operands&... operands) {
  Half result[2];
  const auto half = [](const auto& operand, int i) {
    Half halves[2];
    std::memcpy(halves, &operand, sizeof(halves));
    return halves[i];
  };
  for (int i = 0; i < 2; ++i) result[i] = f(half(operands, i)...);
  return bits_as<Vector>(result);
}
template <class Vector>
TILEWISE_EMULATED unsigned compared(const Vector& a, const Vector& b, int how) {
  const auto is = [how](auto x, auto y) {
    switch (how) {
      case _CMP_LT_OQ:
        return x < y;
      case _CMP_GT_OQ:
        return x > y;
      case _CMP_EQ_OQ:
        return x == y;
      case _CMP_NLT_UQ:
        return !(x < y);
      case _CMP_UNORD_Q:
        return x != x || y != y;
      default:
        std::abort();
    }
  };
  unsigned mask = 0;
  for (std::size_t i = 0; i < sizeof(a) / sizeof(a[0]); ++i) mask |= is(a[i], b[i]) ? 1u << i : 0;
  return mask;
}
TILEWISE_EMULATED __mmask16 compared_floats(const __m512& a, const __m512& b, int how) {
  return static_cast<__mmask16>(compared(a, b, how));
}
TILEWISE_EMULATED __mmask8 compared_doubles(const __m512d& a, const __m512d& b, int how) {
  return static_cast<__mmask8>(compared(a, b, how));
}
TILEWISE_EMULATED __m512 difference(const __m512& a, const __m512& b) { return a - b; }
TILEWISE_EMULATED __m512 product(const __m512& a, const __m512& b) { return a * b; }
#define TILEWISE_BY_HALVES(name, whole, half, operation)                                   \
  template <class... Operands>                                                             \
  TILEWISE_EMULATED whole name(const Operands&... operands) {                              \
    return by_halves<whole, half>([](auto... x) { return operation(x...); }, operands...); \
  }
TILEWISE_BY_HALVES(greater, __m512, __m256, _mm256_max_ps)
TILEWISE_BY_HALVES(greater_double, __m512d, __m256d, _mm256_max_pd)
TILEWISE_BY_HALVES(lesser, __m512, __m256, _mm256_min_ps)
TILEWISE_BY_HALVES(lesser_double, __m512d, __m256d, _mm256_min_pd)
TILEWISE_BY_HALVES(fused, __m512, __m256, _mm256_fmadd_ps)
TILEWISE_BY_HALVES(fused_double, __m512d, __m256d, _mm256_fmadd_pd)
TILEWISE_BY_HALVES(fused_difference, __m512, __m256, _mm256_fmsub_ps)
#undef TILEWISE_BY_HALVES
TILEWISE_EMULATED __m512 of_fp16(const __m256i& x) {
  __m128i halves[2];
  std::memcpy(halves, &x, sizeof(x));
  const __m256 parts[2] = {_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])};
  return bits_as<__m512>(parts);
}
TILEWISE_EMULATED __m256i to_fp16(const __m512& x, int how) {
  if (how != _MM_FROUND_TO_NEAREST_INT) std::abort();
  __m256 halves[2];
  std::memcpy(halves, &x, sizeof(x));
  const __m128i parts[2] = {_mm256_cvtps_ph(halves[0], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(halves[1], _MM_FROUND_TO_NEAREST_INT)};
  return bits_as<__m256i>(parts);
}
TILEWISE_EMULATED __m512 chosen(const __m512& source, unsigned mask, const __m512& x) {
  __m512 to = source;
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) to[i] = x[i];
  }
  return to;
}
TILEWISE_EMULATED __m512 chosen_or_zero(unsigned mask, const __m512& x) {
  return chosen(__m512{}, mask, x);
}
TILEWISE_EMULATED __m512 absolute(const __m512& x) {
  return bits_as<__m512>(bits_as<Words>(x) & 0x7FFFFFFFu);
}

// a * 2^floor(b), rounded once. Conversion to float flushes denormals if the mode of the thread
// says so. Doubles never need that.
TILEWISE_EMULATED double scaled(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (std::isinf(b)) {
    const double factor = b > 0 ? b : 0.0;
    return a * factor;  // NaN for 0 * infinity and infinity * 0
  }
  const double most = 4000;
  const double n = std::floor(b);
  return std::ldexp(a, static_cast<int>(n > most ? most : n < -most ? -most : n));
}
TILEWISE_EMULATED __m512d scaled_doubles_or_zero(unsigned mask, const __m512d& a,
                                                 const __m512d& b) {
  __m512d to = {};
  for (int i = 0; i < 8; ++i) {
    if (mask >> i & 1) to[i] = scaled(a[i], b[i]);
  }
  return to;
}
TILEWISE_EMULATED __m512 scaled_floats_or_zero(unsigned mask, const __m512& a, const __m512& b) {
  __m512 to = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) to[i] = static_cast<float>(scaled(a[i], b[i]));
  }
  return to;
}
TILEWISE_EMULATED __m512d scaled_doubles(const __m512d& a, const __m512d& b) {
  return scaled_doubles_or_zero(0xFF, a, b);
}
TILEWISE_EMULATED __m512 scaled_floats(const __m512& a, const __m512& b) {
  return scaled_floats_or_zero(0xFFFF, a, b);
}
// x - floor(x)
TILEWISE_EMULATED __m512 reduced(const __m512& x, int how) {
  if (how != 9) std::abort();
  return by_halves<__m512, __m256>(
      [](__m256 half) {
        const __m256 rest = _mm256_sub_ps(half, _mm256_floor_ps(half));
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), half);
        const __m256 infinite =
            _mm256_cmp_ps(size, _mm256_set1_ps(std::numeric_limits<float>::infinity()), _CMP_EQ_OQ);
        return _mm256_andnot_ps(infinite, rest);
      },
      x);
}

// ---- bf16 ----

TILEWISE_EMULATED Floats flushed(Floats x) {
  const Words bits = bits_as<Words>(x);
  const Words normal = bits_as<Words>((bits & 0x7F800000u) != 0u);
  return bits_as<Floats>(bits & (normal | 0x80000000u));
}
// Rounds to nearest even; denormals become zeros.
TILEWISE_EMULATED void round_pairs(const __m512& x, std::uint16_t* to) {
  std::uint32_t words[16];
  std::memcpy(words, &x, sizeof(x));
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t bits = words[i];
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    const bool denormal = (bits & 0x7F800000u) == 0;
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    to[i] = static_cast<std::uint16_t>(nan        ? (bits >> 16 | 0x40u)
                                       : denormal ? bits >> 16 & 0x8000u
                                                  : rounded);
  }
}
TILEWISE_EMULATED __m256bh rounded(const __m512& x) {
  std::uint16_t to[16];
  round_pairs(x, to);
  return bits_as<__m256bh>(to);
}
TILEWISE_EMULATED __m512bh rounded_two(const __m512& high, const __m512& low) {
  std::uint16_t to[32];
  round_pairs(low, to);
  round_pairs(high, to + 16);
  return bits_as<__m512bh>(to);
}
// Adds the odd products to c, and then the even ones. Denormals become zeros.
template <class Operand>
TILEWISE_EMULATED __m512 added_pairs(const __m512& c, const Operand& a, const Operand& b) {
  const Words first = bits_as<Words>(a);
  const Words second = bits_as<Words>(b);
  const auto odd = [](Words x) {
    return bits_as<__m512>(flushed(bits_as<Floats>(x & 0xFFFF0000u)));
  };
  const auto even = [](Words x) { return bits_as<__m512>(flushed(bits_as<Floats>(x << 16))); };
  const __m512 sum = fused(odd(first), odd(second), bits_as<__m512>(flushed(bits_as<Floats>(c))));
  const __m512 all =
      fused(even(first), even(second), bits_as<__m512>(flushed(bits_as<Floats>(sum))));
  return bits_as<__m512>(flushed(bits_as<Floats>(all)));
}
template <class Operand>
TILEWISE_EMULATED __m128 added_word(const __m128& c, const Operand& a, const Operand& b) {
  const auto wide = [](const auto& x) {
    __m512i to = same_words(0);
    std::memcpy(&to, &x, sizeof(x));
    return to;
  };
  const __m512 sum = added_pairs(bits_as<__m512>(wide(c)), wide(a), wide(b));
  __m128 to;
  std::memcpy(&to, &sum, sizeof(to));
  return to;
}

}  // namespace
}  // namespace tilewise::emulation
