/* New keys and values at the end of a cache that grows in place, with rotary embedding. The C
 * interface (C99).
 *
 *   tilewise_append step;
 *   tilewise_append_init(&step);
 *   step.k_cache = ...; step.v_cache = ...;    (B, S, Hk, D), (B, S, Hk, Dv): written
 *   step.k = ...; step.v = ...;                (B, new, Hk, D), (B, new, Hk, Dv)
 *   step.cache_seqlens = ...;                  (B): keys that the cache holds
 *   step.rotary_cos = ...; step.rotary_sin = ...;
 *   step.q = ...; step.q_rotated = step.q;     in place
 *   if (tilewise_append_run(&step, NULL) != TILEWISE_OK) puts(tilewise_last_error());
 *
 * Then call tilewise_forward() with seqused_k = cache_seqlens + new.
 */
#ifndef TILEWISE_TILEWISE_APPEND_H_
#define TILEWISE_TILEWISE_APPEND_H_

#include <tilewise/tilewise.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Start from tilewise_append_init(): it sets struct_size, every tensor absent and every option off.
 * All tensors are on one device, and q, k, v and the caches have one dtype: fp32, bf16 or fp16.
 * Strides are arbitrary; the innermost one is 1. Lists are int32 or int64. */
typedef struct tilewise_append {
  size_t struct_size;

  int32_t interleaved; /* pairs that are rotated: 1 neighbours, 2 i and 2 i + 1 (GPT-J); 0 i and
                          i + R / 2 (GPT-NeoX) */
  int32_t q_at_end;    /* 0: queries of a sequence have positions one after the other; 1: all of
                          them have that of the first */

  tilewise_tensor k_cache; /* (N, S, Hk, D): sequence b is row b, or row cache_batch_idx[b]; with
                              page_table pages (N, page size, Hk, D) */
  tilewise_tensor v_cache; /* (N, S, Hk, Dv) */
  tilewise_tensor k, v;    /* (B, new, Hk, D) and (B, new, Hk, Dv), or packed (T, Hk, ...) with
                              cu_seqlens_k */
  tilewise_tensor cu_seqlens_k;    /* (B+1) */
  tilewise_tensor cache_seqlens;   /* (B): where the first new key of a sequence goes */
  tilewise_tensor cache_batch_idx; /* (B); not with page_table */
  tilewise_tensor page_table;      /* (B, pages) int32, as tilewise_problem has it */

  /* (positions, R/2), fp32 or the dtype of q: the first R <= D dimensions of k and q become
   * (a c - b s, a s + b c). Absent: nothing is rotated. */
  tilewise_tensor rotary_cos, rotary_sin;
  tilewise_tensor rotary_seqlens; /* (B): the position of a sequence's first new key and first
                                     query; absent: cache_seqlens */
  tilewise_tensor q, q_rotated;   /* (B, Sq, H, D), or packed (T, H, D) with cu_seqlens_q: only with
                                     rotary_cos. q_rotated may be q */
  tilewise_tensor cu_seqlens_q;   /* (B+1) */
} tilewise_append;

TILEWISE_API void tilewise_append_init(tilewise_append* append);

/* Writes k, rotated, and v into the caches, and q, rotated, to q_rotated, in one pass; on a GPU in
 * one kernel on the executor's stream, which a graph can capture. `executor` NULL means the default
 * pool, or the default stream. It allocates nothing. Products and sums are rounded to fp32 each,
 * the result to the dtype: the bits are the same on every device. On the CPU contents are checked
 * first, and nothing is written on failure. On a GPU a token whose place is not in the cache (by
 * cache_seqlens, cache_batch_idx or page_table) is not written, and the nearest position of
 * rotary_cos is taken for one that it lacks. Two sequences must not write the same place. */
TILEWISE_API tilewise_status tilewise_append_run(const tilewise_append* append,
                                                 const tilewise_executor* executor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_APPEND_H_ */
