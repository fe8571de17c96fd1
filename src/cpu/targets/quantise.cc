// Quantisation to fp8. The file is compiled once for each instruction set that has plain SIMD.
#include "cpu/quantise.h"
#include "cpu/quantise/run.h"

namespace tilewise::cpu::TILEWISE_TARGET {
namespace {

std::int64_t workspace(const Quantisation& task, std::int64_t concurrency) {
  return quantise_workspace(task, concurrency);
}
void run(const Quantisation& task, const RunContext& context) { run_quantise(task, context); }

}  // namespace

extern const TargetQuantise kQuantise;
const TargetQuantise kQuantise = {workspace, run};

}  // namespace tilewise::cpu::TILEWISE_TARGET
