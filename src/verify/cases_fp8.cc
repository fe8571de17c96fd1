// The cases of fp8 in the table.
#include "verify/cases.h"

namespace tilewise::verify {
namespace {

Case fp8(const Case& description, std::int32_t dtype, Descale descale, std::int32_t q_dtype = 0) {
  Case c = description;
  c.dtype = dtype;
  c.q_dtype = q_dtype;
  c.descale = descale;
  return c;
}

}  // namespace

void add_fp8(std::vector<Case>& cases) {
  constexpr std::int32_t kE4M3 = TILEWISE_E4M3;
  constexpr std::int32_t kE5M2 = TILEWISE_E5M2;
  Case prefill = sized(2, 150, 300, 4, 2, 72);
  prefill.value_dim = 40;
  prefill.causal = true;
  cases.push_back(fp8(prefill, kE4M3, Descale::kBlocks));
  prefill.output_dtype = TILEWISE_FP16;
  cases.push_back(fp8(prefill, kE5M2, Descale::kHeads, TILEWISE_FP16));
  Case step = sized(2, 1, 1100, 8, 2, 64);
  step.used = {1100, 900};
  cases.push_back(fp8(step, kE4M3, Descale::kBlocks, TILEWISE_BF16));
  step.output_dtype = TILEWISE_FP32;
  step.layout = TILEWISE_BHSD;
  cases.push_back(fp8(step, kE5M2, Descale::kTensor));
  Case narrow = sized(1, 3, 600, 3, 3, 7);
  narrow.value_dim = 33;
  narrow.window_left = 300;
  narrow.storage = Storage::kPadded;
  cases.push_back(fp8(narrow, kE4M3, Descale::kHeads, TILEWISE_FP32));
  Case packed = sized(4, 0, 0, 4, 2, 32);
  packed.q_packed = packed.k_packed = packed.causal = true;
  packed.q_lengths = {70, 1, 0, 64};
  packed.k_lengths = {90, 140, 5, 65};
  packed.unowned = 3;
  cases.push_back(fp8(packed, kE4M3, Descale::kBlocks));
  packed.bias = {true, 4, {false, true, true, true}};
  packed.dropout_p = 0.2;
  cases.push_back(fp8(packed, kE5M2, Descale::kHeads, TILEWISE_BF16));
  Case square = sized(2, 200, 200, 4, 2, 128);
  square.causal = square.sink = true;
  cases.push_back(fp8(square, kE4M3, Descale::kHeads));
  square.causal = false;
  square.value_dim = 64;
  square.window_left = 70;
  square.window_right = 3;
  cases.push_back(fp8(square, kE5M2, Descale::kTensor));
  Case pages = sized(3, 1, 1120, 8, 2, 64);
  pages.used = {1120, 0, 577};
  pages.page_size = 16;
  cases.push_back(fp8(pages, kE4M3, Descale::kBlocks, TILEWISE_BF16));
  Case chunk = sized(2, 60, 192, 2, 2, 24);
  chunk.softcap = 5;
  chunk.page_size = 64;
  cases.push_back(fp8(chunk, kE4M3, Descale::kHeads));
  Case cut = sized(1, 50, 500, 2, 1, 40);
  cut.output_dtype = TILEWISE_FP32;
  cut.k_cuts = {130};
  cases.push_back(fp8(cut, kE4M3, Descale::kAbsent, TILEWISE_BF16));
  for (const Distribution distribution : {Distribution::kNanK, Distribution::kNanV}) {
    for (const std::int64_t q_len : {5, 70}) {
      Case poisoned = sized(1, q_len, 130, 2, 1, 48);
      poisoned.causal = true;
      poisoned.distribution = distribution;
      cases.push_back(fp8(poisoned, q_len == 5 ? kE4M3 : kE5M2, Descale::kTensor));
      cases.push_back(fp8(poisoned, q_len == 5 ? kE5M2 : kE4M3, Descale::kTensor, TILEWISE_BF16));
    }
  }
}

}  // namespace tilewise::verify
