// Fills an instance with numbers, according to the distribution of its inputs.
#include <cmath>

#include "verify/fill.h"
#include "verify/instance.h"

namespace tilewise::verify {

void Instance::fill(const tilewise_tensor& tensor, Random& random) {
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    write_element(tensor, offset, random.normal());
  });
}

// Adds the scales, random numbers from 0.5 to 1.5 that no dtype of 8 or 16 bits holds exactly.
void Instance::add_descales() {
  if (case_.descale == Descale::kAbsent) return;
  const auto lengths = score_shape(case_);
  Random random(case_.seed ^ 0xDE5CA1E);
  const struct {
    const char* name;
    Member member;
    const tilewise_tensor& scaled;
    bool packed;
    std::int64_t rows;
  } scales[] = {
      {"q_descale", &tilewise_problem::q_descale, request_.q, case_.q_packed, query_tokens(case_)},
      {"k_descale", &tilewise_problem::k_descale, request_.k, case_.k_packed, key_tokens(case_)},
      {"v_descale", &tilewise_problem::v_descale, request_.v, case_.k_packed, key_tokens(case_)}};
  for (const auto& scale : scales) {
    if (!problem::is_fp8(scale.scaled.dtype)) continue;
    std::vector<std::int64_t> shape = {1};
    if (case_.descale != Descale::kTensor) shape = {lengths[0], case_.kv_heads};
    if (case_.descale == Descale::kBlocks) {
      if (scale.packed) shape[0] = 1;
      shape.push_back((scale.rows + problem::kDescaleRows - 1) / problem::kDescaleRows);
    }
    add_contiguous(scale.name, scale.member, TILEWISE_FP32, shape);
    for_each_element(request_.*scale.member, [&](std::int64_t, std::int64_t offset) {
      write_element(request_.*scale.member, offset, 0.5 + random.uniform());
    });
  }
}

void Instance::fill_inputs() {
  Random random(case_.seed);
  const auto normal = [&] { return random.normal(); };
  for (const TensorMember member :
       {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dout})
    fill_rows(case_.distribution, request_, member, random.bits(), normal);
  fill(request_.dlse, random);
  fill(request_.sink, random);
  for_each_element(request_.phi, [&](std::int64_t i, std::int64_t offset) {
    write_element(request_.phi, offset, case_.phi[static_cast<std::size_t>(i)]);
  });
  fill_bias(case_.distribution, request_.bias, normal);
  if (case_.bias_masks) {
    for_each_element(request_.bias, [&](std::int64_t, std::int64_t offset) {
      if (random.chance(0.1)) write_element(request_.bias, offset, -HUGE_VAL);
    });
  }
  for_each_element(request_.mask, [&](std::int64_t, std::int64_t offset) {
    static_cast<std::uint8_t*>(request_.mask.data)[offset] = random.chance(0.75) ? 1 : 0;
  });
  // The slopes are close to the paper's. The paper's own would be the same in every draw: where
  // nothing else distinguishes keys, the probabilities would be the same too, and so would plain
  // attention's roundings, lucky or not.
  for_each_element(request_.alibi_slopes, [&](std::int64_t i, std::int64_t offset) {
    const double exponent = -8 * static_cast<double>(i % case_.heads + 1);
    write_element(
        request_.alibi_slopes, offset,
        std::exp2(exponent / static_cast<double>(case_.heads)) * (0.7 + 0.3 * random.uniform()));
  });
}

}  // namespace tilewise::verify
