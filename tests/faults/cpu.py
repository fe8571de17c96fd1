"""Faults of src/cpu: what the kernels compute."""
from fault import Fault

PROGRAMS = ["matrix_test", "reliability_test"]

MASK = "src/cpu/common/mask.h"
DROPOUT = "src/cpu/common/dropout.h"
SCORES = "src/cpu/common/score_mod.h"
FUNCTION = "src/cpu/common/score_function.h"
SCHEDULE = "src/cpu/common/schedule.h"
ROW_END = "src/cpu/common/row_end.h"
FORWARD = "src/cpu/forward/main_loop.h"
FINALISE = "src/cpu/forward/finalise.h"
SPLIT = "src/cpu/forward/split_kv.h"
RUN = "src/cpu/forward/run.h"
DECODE = "src/cpu/decode/plan.h"
CACHE = "src/cpu/decode/cache_rows.h"
AGAIN = "src/cpu/decode/recompute.h"
MERGE = "src/cpu/decode/merge.h"
SOFTMAX = "src/cpu/decode/softmax.h"
STEP = "src/cpu/decode/step.h"
RECOMPUTE = "src/cpu/backward/recompute.h"
BACKWARD = "src/cpu/backward/main_loop.h"
KERNELS = "src/cpu/kernels.cc"

FAULTS = [
    Fault("a full band hides a partial one", MASK, "if (of_band == TileClass::kFull) return TileClass::kFull;",
          "if (of_band == TileClass::kFull) return result;"),
    Fault("the edge of a band is one key off", MASK, "(first <= key) & (key < end)", "(first <= key) & (key <= end)"),
    Fault("slices of other heads are seen", MASK, "if (entry.head != -1 && entry.head != context.head) return;", ""),
    Fault("slices reach behind seqused_k", MASK,
          "Band band = entry.band; band.key_end = math::min(band.key_end, context.sequence.k_len);",
          "Band band = entry.band;"),
    Fault("two bands in a tile: the first counts", MASK,
          "if (touching != nullptr) return apply_union<T, kLanesAre, kWidth>(context, bounds, scratch.visible, scores);",
          "if (touching != nullptr) continue;"),
    Fault("keys that all rows see are those of the last band", MASK,
          "if (of_band.end - of_band.begin > range.end - range.begin) range = of_band;", "range = of_band;"),
    Fault("the boolean mask is inverted", MASK, "math::masked(row[lane] != T(0),", "math::masked(row[lane] == T(0),"),
    Fault("dropout keeps what it should drop", DROPOUT, "words.word[j % 4] >= rule.threshold", "words.word[j % 4] < rule.threshold"),
    Fault("dropout of a part counts its own keys", DROPOUT, "keys.begin += origin.key; keys.end += origin.key;", ""),
    Fault("ALiBi without the diagonal", SCORES, "bounds.lane0 + context.sequence.diagonal - bounds.t0 - t",
          "bounds.lane0 - bounds.t0 - t"),
    Fault("the bias of the first head serves all", SCORES, "bias.offset(context.sequence.batch, context.head, i, j)",
          "bias.offset(context.sequence.batch, 0, i, j)"),
    Fault("softcap is not applied", SCORES, "math::softcapped(score, Vec<T>(cap)).store(scores + at);", ""),
    Fault("a score function sees transposed tiles", FUNCTION,
          "(kLanesAre == Lanes::kQueries ? tile.key_stride : tile.row_stride) = kWidth;",
          "(kLanesAre == Lanes::kKeys ? tile.key_stride : tile.row_stride) = kWidth;"),
    Fault("a score function gets gradients in units", FUNCTION, "* Vec<T>(units.first) * Vec<T>(units.second);", ";",
          programs=["score_function_test"]),
    Fault("a score function sees masked scores", FUNCTION, "Vec<T>(T(0)), Vec<T>::load(before + at))",
          "Vec<T>::load(before + at), Vec<T>::load(before + at))", programs=["score_function_test"]),
    Fault("what a score function makes of masked gradients counts", FUNCTION,
          "select(Vec<T>::load(given + at) == zero, zero, result).store(gradients + at);", "result.store(gradients + at);",
          programs=["score_function_test"]),
    Fault("the sink of the first head serves all", ROW_END, "problem.sink.offset(0, head, 0)", "problem.sink.offset(0, 0, 0)"),
    Fault("lse in the units of the products", ROW_END, "state.max *= ScoreScaling<T>(problem).factor;", ""),
    Fault("an earlier result is overwritten", ROW_END, "if (problem.accumulate) {", "if (false) {"),
    Fault("an empty earlier row is read", FINALISE, "reads[lane] = end.has_earlier;", "reads[lane] = true;"),
    Fault("the last split is not merged", SPLIT, "slot < first + splits; ++slot", "slot < first + splits - 1; ++slot"),
    Fault("the units of a split are forgotten", SPLIT, "unit > T(1) && i < size", "false && i < size"),
    Fault("splits of two units are merged as they are", SPLIT, "if (units[s] == least) continue;", "continue;"),
    Fault("large values have no unit in products of pairs", FORWARD, "v_unit = lowered_unit(v_unit, largest(), room);", ""),
    Fault("a decoded split that has overflowed is kept", AGAIN, "while (lower_prob_units(range, scratch) || falls_back) {",
          "while (falls_back) {"),
    Fault("decoded splits of two units are merged as they are", MERGE,
          "if (states.prob_unit[to] != states.prob_unit[from]) {", "if (false) {"),
    Fault("the first rows of a block are left out", RUN, "at >= 0; at -= rows", "at > 0; at -= rows"),
    Fault("decoding without the sink", MERGE, "state, sink_of<T>(problem, head))", "state, -math::Limits<T>::kInfinity)"),
    Fault("phi is trusted", AGAIN, "if (is_safe_row(scratch.sum[r], scratch.out + r * size, size)) continue;",
          "if (scratch.sum[r] >= T(0) || is_safe_row(scratch.sum[r], scratch.out + r * size, size)) continue;"),
    Fault("rows that see no key of a split stay at phi", AGAIN,
          "if (!sees_split(range, r)) scratch.max[r] = math::empty_state<T>().max;", ""),
    Fault("all rows fall back", AGAIN, "scratch.at_phi[r] = 0; all = false;",
          "for (std::int64_t n = 0; n < range.rows(); ++n) scratch.at_phi[n] = 0; all = false;"),
    Fault("a page is looked up for the first key of a block", CACHE, "address[j] = cache_row<S>(view, range, kv_number, block.first + j);",
          "address[j] = cache_row<S>(view, range, kv_number, block.first) + j * view.row;"),
    Fault("a tree of splits merges in one direction", MERGE,
          "math::combine(Vec<T>(factor_from), Vec<T>::load(more + c))", "math::combine(Vec<T>(factor_to), Vec<T>::load(more + c))"),
    Fault("decoding does not rescale its sum", SOFTMAX, "multiply_add(Vec<T>(*sum), rescale, sum_of_lanes(total)).v[0]",
          "(Vec<T>(*sum) + sum_of_lanes(total)).v[0]"),
    Fault("decoding sees no masked key", SOFTMAX, "seen[j] = scores[j] == -math::Limits<T>::kInfinity ? 0 : 1;", "seen[j] = 1;"),
    Fault("decoding adds hidden values", STEP, "if (scratch.seen[r * kDecodeKeys + j] == 0) continue;", ""),
    Fault("the first of several splits is always seen", DECODE, "if (keys.begin >= keys.end) continue;", "",
          harmless="an item more that sees no key"),
    Fault("windows do not shorten a decode", DECODE, "return {begin, math::clamp(keys.end, begin, sequence.k_len)};",
          "return {begin, sequence.k_len};", harmless="the keys behind the window are masked: bits and time"),
    Fault("backward without dlse and delta", RECOMPUTE, "math::score_gradient(prob, dprob, delta)",
          "math::score_gradient(prob, dprob, delta * Vec<T>(T(0)))"),
    Fault("backward drops without its factor", RECOMPUTE, "dropped = prob * keep;", "dropped = prob;"),
    Fault("NaN in LSE reaches masked keys", RECOMPUTE,
          "select(score == Vec<T>(-math::Limits<T>::kInfinity), zero, math::probability(score, lse, scale_log2))",
          "math::probability(score, lse, scale_log2)"),
    Fault("backward without the derivative of softcap", RECOMPUTE,
          "(gradient * Vec<T>::load(tile.record.derivative + at)).store(tile.gradients + at);", "gradient.store(tile.gradients + at);"),
    Fault("the second query head of a group adds no dk", BACKWARD, "kv_head * problem->group + head_of_group,",
          "kv_head * problem->group,"),
    Fault("dk and dv are not cleared", BACKWARD, "clear_key_gradients<E, kWidth>(block, scratch);", ""),
    Fault("dq is added in any order", BACKWARD, "if (pass.adds_to_dq()) block.order.wait(position);", "",
          programs=["reliability_test"]),
    Fault("a block of keys sees all rows of the last tile only", BACKWARD,
          "next = next_range(math::round_up(seen.end, kGradientTile));", "next = {seen.end, seen.end};"),
    Fault("a forced target runs another kernel", KERNELS,
          "machine.cpu_target != nullptr && std::strcmp(machine.cpu_target, name) != 0 && !is_base", "false",
          programs=["plan_test"]),
    Fault("a kernel runs without its instructions", KERNELS, "if (target->available()) return TILEWISE_OK;",
          "if (target != nullptr) return TILEWISE_OK;", programs=["plan_test", "matrix_test"],
          harmless="a machine with every instruction set cannot tell"),
    Fault("the last worker's items are nobody's", SCHEDULE, "number < count; number = __atomic_fetch_add",
          "number + 1 < count; number = __atomic_fetch_add"),
]
