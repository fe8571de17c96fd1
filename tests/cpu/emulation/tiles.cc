#include "cpu/emulation/tiles.h"

#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tilewise::emulation {
namespace {

constexpr int kTiles = 8;
constexpr int kRows = 16;
constexpr int kRowBytes = 64;

struct Tile {
  alignas(64) unsigned char rows[kRows][kRowBytes];
};
struct Unit {
  bool configured = false;
  Tile tiles[kTiles];
};
thread_local Unit unit;

Tile& tile_of(int number) {
  if (!unit.configured || number < 0 || number >= kTiles) {
    std::fprintf(stderr, "emulated matrix unit: tile %d of a thread that has %d\n", number,
                 unit.configured ? kTiles : 0);
    std::abort();
  }
  return unit.tiles[number];
}

// The bf16 in one half of each word, as floats. Denormals become zeros.
__m256 half_words(const void* words, bool upper) {
  __m256i bits;
  std::memcpy(&bits, words, sizeof(bits));
  bits = upper ? _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)))
               : _mm256_slli_epi32(bits, 16);
  return _mm256_castsi256_ps(bits);
}

}  // namespace

void configure_tiles() {
  if (unit.configured) {
    std::fprintf(stderr, "emulated matrix unit: configured twice\n");
    std::abort();
  }
  unit = {};
  unit.configured = true;
}
void release_tiles() { unit = {}; }

void load_tile(int tile, const void* from, std::int64_t stride) {
  Tile& to = tile_of(tile);
  for (int row = 0; row < kRows; ++row)
    std::memcpy(to.rows[row], static_cast<const unsigned char*>(from) + row * stride, kRowBytes);
}
void store_tile(int tile, void* to, std::int64_t stride) {
  const Tile& from = tile_of(tile);
  for (int row = 0; row < kRows; ++row)
    std::memcpy(static_cast<unsigned char*>(to) + row * stride, from.rows[row], kRowBytes);
}
void clear_tile(int tile) { tile_of(tile) = {}; }

// TDPBF16PS (Intel SDM vol. 2): the products of even columns and those of odd columns are added up
// separately, each in order, and then both are added to the sum. It rounds to nearest even;
// denormals become zeros.
void multiply_tiles(int sum, int a, int b) {
  Tile& sums = tile_of(sum);
  const Tile& left = tile_of(a);
  const Tile& right = tile_of(b);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr((mode & ~static_cast<unsigned>(_MM_ROUND_MASK)) | _MM_FLUSH_ZERO_ON |
             _MM_DENORMALS_ZERO_ON);
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < kRowBytes; half += kRowBytes / 2) {
      __m256 even = _mm256_setzero_ps();
      __m256 odd = _mm256_setzero_ps();
      for (int pair = 0; pair < kRows; ++pair) {
        std::uint32_t word;
        std::memcpy(&word, left.rows[row] + pair * 4, sizeof(word));
        const __m256 low = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word << 16)));
        const __m256 high =
            _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word & 0xFFFF0000u)));
        const unsigned char* const words = right.rows[pair] + half;
        even = _mm256_fmadd_ps(low, half_words(words, false), even);
        odd = _mm256_fmadd_ps(high, half_words(words, true), odd);
      }
      float* const at = reinterpret_cast<float*>(sums.rows[row] + half);
      _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), _mm256_add_ps(even, odd)));
    }
  }
  _mm_setcsr(mode);
}

}  // namespace tilewise::emulation
