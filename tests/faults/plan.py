"""Faults of src/plan and src/capi: what a plan is bound to, what a run requires, what the pool promises."""
from fault import Fault

PROGRAMS = ["plan_test", "capi_test", "pool_test", "limits_test", "unload_test", "problem_test"]

PLAN = "src/plan/plan.cc"
POOL = "src/plan/pool.cc"
COUNT = "src/plan/thread_count.cc"
CAPI = "src/capi/capi.cc"


def bound(what: str, condition: str, answer: str) -> Fault:
    """A plan runs although `what` differs."""
    return Fault(f"a plan runs with another {what}", PLAN, f'if ({condition}) return "{answer}";', "")


FAULTS = [
    # ---- what a plan is bound to ----
    bound("device", "a.device != b.device || a.device_index != b.device_index", "q: device"),
    Fault("a plan runs with another dtype", PLAN, "if ((a.*view).dtype != (b.*view).dtype) return name;", "(void)name;"),
    Fault("a plan runs with another batch", PLAN, "a.batch != b.batch || a.heads", "a.heads"),
    Fault("a plan runs with other heads", PLAN, "a.heads != b.heads || a.head_dim", "a.head_dim"),
    Fault("a plan runs with another D", PLAN, "a.head_dim != b.head_dim || a.q_rows", "a.q_rows"),
    Fault("a plan runs with other queries", PLAN, " || a.q_rows != b.q_rows)", ")"),
    Fault("a plan runs with other kv heads", PLAN, "a.kv_heads != b.kv_heads || ", ""),
    Fault("a plan runs with other keys", PLAN, " || a.k_rows != b.k_rows) return \"k\";", ") return \"k\";"),
    bound("Dv", "a.value_dim != b.value_dim", "v"),
    Fault("a plan runs with packed queries", PLAN, "a.q_packed != b.q_packed || ", "",
          harmless="a packed problem differs in cu_seqlens_q or in its slices"),
    Fault("a plan runs without cu_seqlens_q", PLAN, " || a.cu_seqlens_q.present() != b.cu_seqlens_q.present())", ")",
          harmless="validation requires it of packed queries without slices"),
    bound("max_seqlen_q", "a.max_q != b.max_q", "max_seqlen_q"),
    bound("max_seqlen_k", "a.max_k != b.max_k", "max_seqlen_k"),
    bound("seqused_q", "a.seqused_q.present() != b.seqused_q.present()", "seqused_q"),
    bound("seqused_k", "a.seqused_k.present() != b.seqused_k.present()", "seqused_k"),
    Fault("a plan runs with another number of slices", PLAN, "a.slices.count != b.slices.count ||", ""),
    Fault("a plan runs with slices of heads", PLAN, " || a.slices.columns != b.slices.columns)", ")"),
    Fault("a plan runs with a bias of another shape", PLAN,
          'if (std::memcmp(a.bias_shape, b.bias_shape, sizeof(a.bias_shape)) != 0) return "bias";', ""),
    bound("shape of dalibi_slopes", "a.slopes_per_batch != b.slopes_per_batch", "dalibi_slopes"),
    bound("softcap", "a.softcap != b.softcap", "softcap"),
    bound("dropout_p", "a.dropout_p != b.dropout_p", "dropout_p"),
    bound("alignment", "a.top_left != b.top_left", "alignment"),
    bound("window_left", "a.window_left != b.window_left", "window_left"),
    bound("window_right", "a.window_right != b.window_right", "causal or window_right"),
    bound("deterministic", "a.deterministic != b.deterministic", "deterministic"),
    bound("accumulate", "a.accumulate != b.accumulate", "accumulate"),
    Fault("a plan runs without parts", PLAN, 'if (a.parts.present() != b.parts.present()) return "parts";', ""),
    Fault("a plan runs with pages of another size", PLAN, "a.page_table.page_size != b.page_table.page_size ||", ""),
    Fault("a plan runs with other pages of a sequence", PLAN, "a.page_table.columns != b.page_table.columns ||", ""),
    Fault("a plan runs with another number of pages", PLAN, " || a.page_table.pages != b.page_table.pages)", ")"),
    bound("batch_invariant", "a.batch_invariant != b.batch_invariant", "batch_invariant"),
    # ---- what a run requires ----
    Fault("a workspace too small", PLAN,
          "if (bytes < static_cast<std::size_t>(needed)) {", "if (false) {"),
    Fault("a misaligned workspace", PLAN, "(workspace == nullptr || !aligned)", "(workspace == nullptr)"),
    Fault("no workspace", PLAN, "(workspace == nullptr || !aligned)", "!aligned"),
    Fault("an executor of another size", PLAN, "if (executor.struct_size < sizeof(tilewise_executor)) {", "if (false) {"),
    Fault("an executor without threads", PLAN, "if (executor.max_concurrency < 1) {", "if (false) {"),
    Fault("an executor without function", PLAN, "if (executor.parallel_for == nullptr)", "if (false)"),
    Fault("a plan's run does not check pointers", PLAN,
          "if (const Status status = problem::check_pointers(operation, request); status != TILEWISE_OK) return status; "
          "if (const Status status = check_workspace", "if (const Status status = check_workspace"),
    Fault("one call does not check pointers", PLAN,
          "if (const Status status = problem::check_pointers(operation, request); status != TILEWISE_OK) return status; "
          "if (const Status status = check_memory", "if (const Status status = check_memory"),
    Fault("one call does not check contents", PLAN, "return problem::check_contents(problem);", "return TILEWISE_OK;"),
    Fault("a plan larger than memory", PLAN, "if (plan->workspace_bytes < 0) {", "if (false) {"),
    Fault("no memory for a workspace", PLAN, "if (memory_ == nullptr) {", "if (false) {"),
    Fault("TILEWISE_KERNEL is ignored", PLAN, 'environment("TILEWISE_KERNEL")', "nullptr"),
    Fault("TILEWISE_CPU_TARGET is ignored", PLAN, 'environment("TILEWISE_CPU_TARGET")', "nullptr"),
    Fault("the environment beats the option", PLAN, "options.kernel != nullptr ? options.kernel : environment",
          "options.kernel == nullptr ? options.kernel : environment"),
    Fault("a negative concurrency", PLAN, "if (machine->concurrency < 0) {", "if (false) {"),
    Fault("the planned concurrency is forgotten", PLAN, "plan->concurrency = machine.concurrency;", ""),
    Fault("a kernel of the wrong device", PLAN, "if (kernel.device != problem.device) {", "if (false) {",
          harmless="the build for CUDA has tests of its own"),
    # ---- the pool ----
    Fault("a child has no threads", POOL, "if (unloading) return nullptr;",
          "if (unloading || (crew_ != nullptr && generation_ != fork_count)) return nullptr;"),
    Fault("a child waits for its parent's threads", POOL, "if (crew_ == nullptr || generation_ != fork_count) {",
          "if (crew_ == nullptr) {"),
    Fault("nested calls use the pool", POOL, " && !inside_item ? begin_call()", " ? begin_call()"),
    Fault("threads have the rounding of their own", POOL, "std::fesetenv(&job->environment);", ""),
    Fault("the caller's second job has no threads", POOL, "job.work(); inside_item = false;", "job.work();"),
    Fault("the caller does not wait", POOL, "worker_left.wait(lock, [&] { return job->users == 0; });", ""),
    Fault("a shutdown ends a pool in use", POOL,
          "if (crew->calls.load(std::memory_order_acquire) != 0) return false;", ""),
    Fault("a shutdown from a work item", POOL, "if (inside_item) {", "if (false) {"),
    Fault("a shutdown forgets other pools", POOL, "all = stop(crew) && all; crew = next;",
          "all = stop(crew) && all; crew = nullptr; (void)next;"),
    Fault("threads survive the pool", POOL, "if (Crew* const crew = crew_; !stop(crew)) crew->owner = nullptr;", ""),
    Fault("threads survive the library", POOL, "unloading = true; stop_all();", "unloading = true;"),
    Fault("the pool runs more items than threads", POOL, "for (std::int32_t i = 1; i < threads_; ++i)",
          "for (std::int32_t i = 0; i < threads_; ++i)"),
    Fault("the pool says one thread more", POOL, "executor.max_concurrency = threads_;",
          "executor.max_concurrency = threads_ + 1;"),
    Fault("the pool has no threads", POOL, "for (std::int32_t i = 1; i < threads_; ++i)", "for (std::int32_t i = 1; i < 1; ++i)"),
    Fault("affinity is ignored", COUNT, "cpus = std::max(1, CPU_COUNT(&affinity));", "cpus = std::max(1, cpus);"),
    Fault("OMP_NUM_THREADS comes first", COUNT, "if (text != nullptr && text[0] != '\\0') {", "if (text == nullptr) {"),
    Fault("OMP_NUM_THREADS is no list", COUNT, "(*rest == '\\0' || *rest == ',')", "*rest == '\\0'"),
    Fault("TILEWISE_NUM_THREADS ends in letters", COUNT, "if (rest == nullptr || *rest != '\\0') {", "if (rest == nullptr) {"),
    Fault("100000 threads", COUNT, " || value > kMostThreads) return nullptr;", ") return nullptr;"),
    # ---- the C interface ----
    Fault("an unknown option is dropped", CAPI, "if (bytes[i] != 0) {", "if (false) {"),
    Fault("a struct too small", CAPI, "if (given < known || given - known > kLargestTail) {",
          "if (given - known > kLargestTail && given > known) {"),
    Fault("a struct much too large", CAPI, "given < known || given - known > kLargestTail", "given < known"),
    Fault("a shape that overflows", CAPI, "&stride)) stride = INT64_MAX;", "&stride)) stride = 1;"),
    Fault("a contiguous tensor of rank 5", CAPI, "rank < 1 || rank > TILEWISE_MAX_RANK ||", "rank < 1 || rank > 5 ||"),
    Fault("a pool of -1 threads", CAPI, "threads < 0 || threads > kMostThreads", "threads > kMostThreads"),
    Fault("a pool of a million threads", CAPI, "threads < 0 || threads > kMostThreads", "threads < 0"),
    Fault("an operation of 2", CAPI, "if (operation == TILEWISE_FORWARD || operation == TILEWISE_BACKWARD) return TILEWISE_OK;",
          "return TILEWISE_OK;"),
    Fault("the text of info is one byte too long", CAPI, "std::min(size - 1, whole.size())", "std::min(size, whole.size())"),
    Fault("a failed plan is given", CAPI, "if (status != TILEWISE_OK) { delete created; return status; } *plan = created;",
          "*plan = created; if (status != TILEWISE_OK) return status;"),
    Fault("options of another size", CAPI,
          'if (const tilewise_status status = check_struct("plan_options", options); status != TILEWISE_OK) return status;', ""),
    Fault("plan options are ignored", CAPI, "chosen = {options->kernel, options->cpu_target, options->max_concurrency};", ""),
    Fault("an instruction set of number -1", CAPI,
          "return index >= 0 && index < tilewise_cpu_target_count() && tilewise::cpu::kTargets[index].available()",
          "return index < tilewise_cpu_target_count() && tilewise::cpu::kTargets[index].available()"),
]
