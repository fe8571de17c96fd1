// tilewise run --scales: the bits of tilewise_quantise() and of the library on what it stores.
#include <tilewise/tilewise_quantise.hpp>

#include "support.h"

namespace tilewise::cli_test {
namespace {

using io::Array;
using io::ElementType;

Tensor whole(const Array& array, std::int32_t dtype) {
  return tensor(const_cast<std::byte*>(array.bytes.data()), dtype,
                std::span<const std::int64_t>(array.shape));
}

struct Stored {
  Array values, scales;
};

// k or v (2, S, 2, 16), q (2, S, 4, 16), with scales of `shape`; no scales: rotated only.
Stored stored(const Array& from, ElementType type, std::int32_t dtype,
              const std::vector<std::int64_t>& shape, bool incoherent) {
  Stored result = {io::make_array(type, from.shape), io::make_array(ElementType::f32, shape)};
  Quantisation task;
  task.input = whole(from, TILEWISE_FP32);
  task.output = whole(result.values, dtype);
  if (type == ElementType::e4m3) task.descale = whole(result.scales, TILEWISE_FP32);
  task.incoherent = incoherent;
  task.seed = 7;
  quantise(task);
  return result;
}

class Scales : public Cli {
 protected:
  Scales() {
    write("q.npy", q);
    write("k.npy", k);
    write("v.npy", v);
  }
  const Array q = random_array(ElementType::f32, {2, 33, 4, 16}, 1);
  const Array k = random_array(ElementType::f32, {2, 140, 2, 16}, 2);
  const Array v = random_array(ElementType::f32, {2, 140, 2, 16}, 3);

  // Runs the program and expects the bits of attention to these tensors.
  void expect_out(const std::string& flags, const Stored& q8, const Stored& k8, const Stored& v8,
                  ElementType out_type) const {
    const bool wide = q8.values.type == ElementType::f32;
    const Array out = io::make_array(out_type, q.shape);
    Problem problem;
    problem.q = whole(q8.values, wide ? TILEWISE_FP32 : TILEWISE_E4M3);
    problem.k = whole(k8.values, TILEWISE_E4M3);
    problem.v = whole(v8.values, TILEWISE_E4M3);
    if (!wide) problem.q_descale = whole(q8.scales, TILEWISE_FP32);
    problem.k_descale = whole(k8.scales, TILEWISE_FP32);
    problem.v_descale = whole(v8.scales, TILEWISE_FP32);
    problem.out = whole(out, wide ? TILEWISE_FP32 : TILEWISE_BF16);
    forward(problem);
    const Outcome outcome = run("run --q q.npy --k k.npy --v v.npy --out o.npy " + flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Array found = read("o.npy");
    EXPECT_TRUE(
        std::equal(found.bytes.begin(), found.bytes.end(), out.bytes.begin(), out.bytes.end()))
        << flags;
  }
};

TEST_F(Scales, OfACastOfEverythingAreTheLibrarys) {
  const std::vector<std::vector<std::int64_t>> shapes = {{1}, {2, 2}, {2, 2, 2}};
  const char* const names[] = {"tensor", "head", "block"};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<std::int64_t> of_q = shapes[rank];
    if (rank == 2) of_q[2] = 1;  // 33 rows
    const auto e4m3 = [&](const Array& from, const std::vector<std::int64_t>& shape) {
      return stored(from, ElementType::e4m3, TILEWISE_E4M3, shape, false);
    };
    expect_out(std::string("--dtype fp8 --scales ") + names[rank], e4m3(q, of_q),
               e4m3(k, shapes[rank]), e4m3(v, shapes[rank]), ElementType::bf16);
  }
}

TEST_F(Scales, QueriesBesideARotatedCacheAreRotated) {
  const std::vector<std::int64_t> shape = {2, 2, 2};
  expect_out("--kv-dtype fp8 --scales block --incoherent 7",
             stored(q, ElementType::f32, TILEWISE_FP32, {1}, true),
             stored(k, ElementType::e4m3, TILEWISE_E4M3, shape, true),
             stored(v, ElementType::e4m3, TILEWISE_E4M3, shape, false), ElementType::f32);
}

TEST_F(Scales, RefusalsNameTheFlag) {
  write("scale.npy", random_array(ElementType::f32, {1}, 1));
  const std::pair<const char*, const char*> cases[] = {
      {"--scales row --dtype fp8", "tensor, head, block"},
      {"--scales block", "--scales: given, but neither --dtype nor --kv-dtype"},
      {"--scales block --dtype bf16", "--scales: given, but neither"},
      {"--incoherent 7 --dtype fp8", "--incoherent: given without --scales"},
      {"--incoherent x --dtype fp8 --scales block", "--incoherent"},
      {"--dtype fp8 --scales block --k-descale scale.npy", "there is a k_descale already"},
  };
  for (const auto& [flags, words] : cases) {
    const Outcome outcome =
        run(std::string("run --q q.npy --k k.npy --v v.npy --out o.npy ") + flags);
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    EXPECT_EQ(contents().count("o.npy"), 0u) << flags;
  }
}

}  // namespace
}  // namespace tilewise::cli_test
