/* Quantisation: rows of fp32, bf16 or fp16 stored in fp8, with scales. The C interface (C99).
 *
 *   tilewise_quantisation task;
 *   tilewise_quantisation_init(&task);
 *   task.input = ...;   (B, S, H, D), bf16
 *   task.output = ...;  (B, S, H, D), TILEWISE_E4M3
 *   task.descale = ...; (B, H, ceil(S / 128)), fp32: written, and later the k_descale of a problem
 *   if (tilewise_quantise(&task, NULL) != TILEWISE_OK) puts(tilewise_last_error());
 *
 * docs/semantics.md ("fp8", "Quantisation") defines every bit of the result.
 */
#ifndef TILEWISE_TILEWISE_QUANTISE_H_
#define TILEWISE_TILEWISE_QUANTISE_H_

#include <tilewise/tilewise.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Start from tilewise_quantisation_init(): it sets struct_size, every tensor absent and every
 * option off. All tensors are in memory of the CPU, or of one CUDA device from compute capability
 * 9.0 on. Strides are arbitrary; the innermost one of input and output is 1. */
typedef struct tilewise_quantisation {
  size_t struct_size;

  int32_t layout;       /* TILEWISE_BSHD or TILEWISE_BHSD, of tensors of rank 4 */
  int32_t fixed_scales; /* 1: descale is an input; 0: it is computed and written */
  int32_t incoherent;   /* 1: every row is first multiplied by the random orthogonal matrix of
                           `seed` (signs, Hadamard transform, normalised); the same for q and k */
  int32_t reserved;     /* 0 */
  uint64_t seed;        /* of Philox; has no effect unless incoherent */

  tilewise_tensor input;  /* (B, S, H, D) or packed (T, H, D): fp32, bf16 or fp16 */
  tilewise_tensor output; /* shape of input: e4m3 or e5m2; incoherent also fp32, bf16 or fp16, which
                             are rotated and have no scale */

  /* fp32, the factors of the stored numbers: (1), (B, Hk) or (B, Hk, ceil(S / 128)), or
   * (1, Hk, ceil(T / 128)) of a packed tensor, as tilewise_problem has them. H is a multiple of Hk,
   * and head h has the scale of h / (H / Hk). */
  tilewise_tensor descale;

  tilewise_tensor cu_seqlens; /* (B+1) int32 or int64: with a packed input and descale (B, Hk) only.
                                 Tokens of no sequence are stored as 0 */
  tilewise_tensor saturated;  /* optional, int64 (1): added to, the number of elements beyond the
                                 largest number of the format, which is what they become */
} tilewise_quantisation;

TILEWISE_API void tilewise_quantisation_init(tilewise_quantisation* quantisation);

/* Computes output, and descale unless it is fixed. `executor` NULL means the default pool; it
 * changes no bit of the result. Scales of blocks of 128 rows and fixed ones take one pass over the
 * input, others two. Allocates less than 2 MiB per thread while (H / Hk) * D is at most 2048, and 4
 * bytes per scale of two passes, and 8 per sequence. Contents of cu_seqlens, and of fixed scales
 * (2^-126 to 2^126), are checked. On failure nothing is written.
 *
 * On a device it starts kernels on the stream of `executor` (NULL: the default stream), waits for
 * nothing and allocates nothing. Contents are not checked: rows of any cu_seqlens and scales of any
 * value stay within the tensors. D is at most 2047 with incoherent. */
TILEWISE_API tilewise_status tilewise_quantise(const tilewise_quantisation* quantisation,
                                               const tilewise_executor* executor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_QUANTISE_H_ */
