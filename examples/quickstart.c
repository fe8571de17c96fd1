/* Attention in C99: one call, no framework. */
#include <math.h>
#include <stdio.h>
/* snippet: forward */
#include <tilewise/tilewise.h>

enum { kQueries = 2, kKeys = 3, kDim = 4 };

static int attend(float* q, float* k, float* v, float* out) {
  const int64_t q_shape[] = {1, kQueries, 1, kDim}; /* (B, Sq, H, D) */
  const int64_t k_shape[] = {1, kKeys, 1, kDim};    /* (B, Sk, Hk, D) */
  tilewise_problem problem;
  tilewise_problem_init(&problem);
  problem.q = tilewise_contiguous(q, TILEWISE_FP32, 4, q_shape);
  problem.k = tilewise_contiguous(k, TILEWISE_FP32, 4, k_shape);
  problem.v = tilewise_contiguous(v, TILEWISE_FP32, 4, k_shape);
  problem.out = tilewise_contiguous(out, TILEWISE_FP32, 4, q_shape);
  problem.causal = 1; /* the last query sees every key */
  if (tilewise_forward(&problem, NULL) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  return 0;
}
/* end of snippet */

/* Zero keys give every visible value the same weight: the first query sees two keys, the last one
 * sees three. */
int main(void) {
  float q[kQueries * kDim] = {1, 2, 3, 4, 5, 6, 7, 8};
  float k[kKeys * kDim] = {0};
  float v[kKeys * kDim] = {3, 0, 0, 0, 6, 0, 0, 0, 9, 0, 0, 0};
  float out[kQueries * kDim];
  if (attend(q, k, v, out) != 0) return 1;
  printf("out[0][0] = %.3f (expected 4.500), out[1][0] = %.3f (expected 6.000)\n", out[0],
         out[kDim]);
  return fabsf(out[0] - 4.5f) < 1e-5f && fabsf(out[kDim] - 6.0f) < 1e-5f ? 0 : 1;
}
