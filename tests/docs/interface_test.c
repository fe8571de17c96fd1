/* The C code of docs/interface.md and README.md, compiled, run and checked. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { kLength = 5, kHeads = 2, kDim = 4, kSize = kLength * kHeads * kDim };

static float q[kSize], k[kSize], v[kSize], out[kSize];

static int check(const char* what, int holds) {
  if (!holds) fprintf(stderr, "%s does not hold\n", what);
  return holds ? 0 : 1;
}

/* snippet: executor */
/* Everything in order, on the calling thread: the smallest executor. */
static void run_in_order(void* self, int64_t n, void (*fn)(void* context, int64_t item),
                         void* context) {
  (void)self;
  for (int64_t item = 0; item < n; ++item) fn(context, item);
}
/* end of snippet */

static int own_executor(const tilewise_problem* problem) {
  /* snippet: executor use */
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.parallel_for = run_in_order;
  executor.max_concurrency = 1;
  const tilewise_status status = tilewise_forward(problem, &executor);
  /* end of snippet */
  return check("own executor", status == TILEWISE_OK);
}

static int planned(const tilewise_problem* problem) {
  tilewise_status status;
  /* snippet: plan */
  tilewise_plan* plan = NULL;
  size_t bytes = 0, alignment = 0;
  status = tilewise_plan_create(TILEWISE_FORWARD, problem, NULL, &plan);
  if (status == TILEWISE_OK) {
    tilewise_plan_workspace(plan, &bytes, &alignment);
    void* workspace = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    status = tilewise_plan_run(plan, problem, workspace, bytes, NULL);
    free(workspace);
  }
  tilewise_plan_destroy(plan);
  /* end of snippet */
  return check("plan", status == TILEWISE_OK);
}

int main(void) {
  for (int i = 0; i < kSize; ++i) {
    q[i] = sinf(0.1f * (float)i);
    k[i] = sinf(0.2f * (float)i);
    v[i] = sinf(0.3f * (float)i);
  }
  /* snippet: forward */
  const int64_t shape[] = {1, kLength, kHeads, kDim}; /* (B, S, H, D) */
  tilewise_problem problem;
  tilewise_problem_init(&problem);
  problem.q = tilewise_contiguous(q, TILEWISE_FP32, 4, shape);
  problem.k = tilewise_contiguous(k, TILEWISE_FP32, 4, shape);
  problem.v = tilewise_contiguous(v, TILEWISE_FP32, 4, shape);
  problem.out = tilewise_contiguous(out, TILEWISE_FP32, 4, shape);
  problem.causal = 1;
  if (tilewise_forward(&problem, NULL) != TILEWISE_OK) puts(tilewise_last_error());
  /* end of snippet */
  int failures = 0;
  for (int i = 0; i < kHeads * kDim; ++i) /* the first row sees the first key only */
    failures += check("out[0] = v[0]", fabsf(out[i] - v[i]) <= 1e-6f);
  failures += own_executor(&problem);
  failures += planned(&problem);
  problem.softcap = -1;
  failures += check("a negative softcap is refused",
                    tilewise_forward(&problem, NULL) == TILEWISE_INVALID_ARGUMENT);
  return failures == 0 ? 0 : 1;
}
