/* A user's program in C99. Equal scores: the first row sees one key and gives its value, the second
 * sees two and gives their mean. */
#include <stdio.h>
#include <string.h>
#include <tilewise/tilewise_distributed.h>

static int expect(const char* what, float actual, float expected) {
  if (fabsf(actual - expected) <= 1e-6F) return 0;
  fprintf(stderr, "%s is %g, expected %g\n", what, (double)actual, (double)expected);
  return 1;
}

/* Runs the problem as the only rank of a group, with a token plan of its mask. */
static tilewise_status forward_of_one_rank(const tilewise_problem* problem) {
  tilewise_problem divided = *problem;
  tilewise_token_plan_options tokens;
  tilewise_token_plan* plan = NULL;
  tilewise_local_group* group = NULL;
  tilewise_communicator communicator;
  tilewise_distributed_options options;
  tilewise_token_plan_options_init(&tokens);
  tokens.q_len = tokens.k_len = problem->q.shape[1];
  tilewise_distributed_options_init(&options);
  tilewise_status status = tilewise_token_plan_create(problem, &tokens, &plan);
  if (status == TILEWISE_OK) status = tilewise_local_group_create(1, &group);
  if (status == TILEWISE_OK) status = tilewise_local_group_communicator(group, 0, &communicator);
  options.token_plan = plan;
  divided.causal = 0; /* the mask is in the token plan */
  if (status == TILEWISE_OK)
    status = tilewise_distributed_forward(&divided, &options, &communicator, NULL);
  tilewise_local_group_destroy(group);
  tilewise_token_plan_destroy(plan);
  return status;
}

int main(void) {
  /* B = 1, Sq = Sk = 2, H = Hk = 1, D = Dv = 2 */
  float q[4] = {0, 0, 0, 0}, k[4] = {1, 2, 3, 4}, v[4] = {1, 10, 3, 30}, out[4] = {0}, lse[2] = {0};
  const int64_t shape[4] = {1, 2, 1, 2}, lse_shape[3] = {1, 1, 2};
  tilewise_problem problem;
  tilewise_problem_init(&problem);
  problem.q = tilewise_contiguous(q, TILEWISE_FP32, 4, shape);
  problem.k = tilewise_contiguous(k, TILEWISE_FP32, 4, shape);
  problem.v = tilewise_contiguous(v, TILEWISE_FP32, 4, shape);
  problem.out = tilewise_contiguous(out, TILEWISE_FP32, 4, shape);
  problem.lse = tilewise_contiguous(lse, TILEWISE_FP32, 3, lse_shape);
  problem.causal = 1;
  if (tilewise_forward(&problem, NULL) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  if (expect("out[0][0]", out[0], 1) || expect("out[0][1]", out[1], 10)) return 1;
  if (expect("out[1][0]", out[2], 2) || expect("out[1][1]", out[3], 20)) return 1;
  if (expect("lse[0]", lse[0], 0) || expect("lse[1]", lse[1], logf(2))) return 1;
  memset(out, 0, sizeof out);
  if (forward_of_one_rank(&problem) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  if (expect("out[1][0] of a rank", out[2], 2) || expect("out[1][1] of a rank", out[3], 20))
    return 1;
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", TILEWISE_VERSION_MAJOR, TILEWISE_VERSION_MINOR,
           TILEWISE_VERSION_PATCH);
  if (strcmp(version, tilewise_version()) != 0) {
    fprintf(stderr, "header %s, library %s\n", version, tilewise_version());
    return 1;
  }
  printf("tilewise %s from C99: ok\n", version);
  return 0;
}
