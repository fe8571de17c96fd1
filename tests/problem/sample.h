// A valid problem with every optional tensor, which tests make invalid in one respect at a time.
#pragma once

#include <gtest/gtest.h>
#include <tilewise/tilewise.h>

#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "problem/status.h"
#include "problem/tensors.h"

namespace tilewise::tests {

using problem::Operation;
inline constexpr Operation kForward = Operation::kForward;
inline constexpr Operation kBackward = Operation::kBackward;

inline constexpr std::int64_t kB = 2, kSq = 3, kSk = 5, kH = 4, kHk = 2, kD = 8, kDv = 6;

// Dense, fp32, forward and backward. It owns the memory of all its tensors, with 0x5A in every
// byte.
class Sample {
 public:
  Sample() : memory_(kTensors * kBytes, 0x5A) {
    tilewise_problem_init(&request);
    request.q = tensor(TILEWISE_FP32, {kB, kSq, kH, kD});
    request.k = tensor(TILEWISE_FP32, {kB, kSk, kHk, kD});
    request.v = tensor(TILEWISE_FP32, {kB, kSk, kHk, kDv});
    request.out = tensor(TILEWISE_FP32, {kB, kSq, kH, kDv});
    request.lse = tensor(TILEWISE_FP32, {kB, kH, kSq});
    request.mask = tensor(TILEWISE_BOOL, {kB, 1, kSq, kSk});
    request.bias = tensor(TILEWISE_FP32, {1, kH, kSq, kSk});
    request.alibi_slopes = tensor(TILEWISE_FP32, {kH});
    request.sink = tensor(TILEWISE_FP32, {kH});
    request.dout = tensor(TILEWISE_FP32, {kB, kSq, kH, kDv});
    request.dlse = tensor(TILEWISE_FP32, {kB, kH, kSq});
    request.dq = tensor(TILEWISE_FP32, {kB, kSq, kH, kD});
    request.dk = tensor(TILEWISE_FP32, {kB, kSk, kHk, kD});
    request.dv = tensor(TILEWISE_FP32, {kB, kSk, kHk, kDv});
    request.dbias = tensor(TILEWISE_FP32, {1, kH, kSq, kSk});
    request.dsink = tensor(TILEWISE_FP32, {kH});
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  tilewise_tensor tensor(std::int32_t dtype, const std::vector<std::int64_t>& shape) {
    char* const data = memory_.data() + kBytes * used_++;
    return tilewise_contiguous(data, dtype, static_cast<std::int32_t>(shape.size()), shape.data());
  }

  // Returns a tensor of int64 numbers of the given shape.
  tilewise_tensor numbers(const std::vector<std::int64_t>& values,
                          const std::vector<std::int64_t>& shape) {
    const tilewise_tensor result = tensor(TILEWISE_INT64, shape);
    std::memcpy(result.data, values.data(), values.size() * sizeof(std::int64_t));
    return result;
  }

  // Makes both sides packed: two sequences of 2 and 1 queries, 2 and 3 keys.
  void pack() {
    request.q = tensor(TILEWISE_FP32, {kSq, kH, kD});
    request.k = tensor(TILEWISE_FP32, {kSk, kHk, kD});
    request.v = tensor(TILEWISE_FP32, {kSk, kHk, kDv});
    request.out = tensor(TILEWISE_FP32, {kSq, kH, kDv});
    request.lse = tensor(TILEWISE_FP32, {kH, kSq});
    request.cu_seqlens_q = numbers({0, 2, 3}, {3});
    request.cu_seqlens_k = numbers({0, 2, 5}, {3});
    for (const auto member :
         {&tilewise_problem::mask, &tilewise_problem::bias, &tilewise_problem::dout,
          &tilewise_problem::dlse, &tilewise_problem::dq, &tilewise_problem::dk,
          &tilewise_problem::dv, &tilewise_problem::dbias}) {
      request.*member = tilewise_tensor{};
    }
  }

  // Makes a paged cache: 4 pages of 3 keys, of which each of the two sequences has two. Forward
  // only.
  void page() {
    request.k = tensor(TILEWISE_FP32, {4, 3, kHk, kD});
    request.v = tensor(TILEWISE_FP32, {4, 3, kHk, kDv});
    request.page_table = tensor(TILEWISE_INT32, {kB, 2});
    const std::int32_t pages[] = {3, 0, 1, 2};
    std::memcpy(request.page_table.data, pages, sizeof(pages));
    for (const auto member : {&tilewise_problem::mask, &tilewise_problem::bias})
      request.*member = tilewise_tensor{};
  }
  // Sets an entry of its table.
  void set_page(std::int64_t entry, std::int32_t page) {
    std::memcpy(static_cast<std::int32_t*>(request.page_table.data) + entry, &page, sizeof(page));
  }

  const std::string& memory() const { return memory_; }

  tilewise_problem request;

 private:
  static constexpr std::size_t kTensors = 40;
  static constexpr std::size_t kBytes = 4096;
  std::string memory_;
  std::size_t used_ = 0;
};

// One way to make the sample invalid.
struct Fault {
  const char* name;
  Operation operation;
  std::function<void(Sample&)> alter;
  std::vector<const char*> message;  // parts that must appear; the message begins with the first
  tilewise_status status = TILEWISE_INVALID_ARGUMENT;
};
inline void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// Shorthands for the lambdas of faults.
#define ALTER(code)                                        \
  [](Sample& sample) {                                     \
    [[maybe_unused]] tilewise_problem& p = sample.request; \
    code;                                                  \
  }

inline tilewise_status run(Operation operation, const tilewise_problem& request) {
  return operation == Operation::kForward ? tilewise_forward(&request, nullptr)
                                          : tilewise_backward(&request, nullptr);
}

// Expects the status and the message of a fault, and that nothing is written.
inline void expect_fault(const Fault& fault) {
  Sample sample;
  fault.alter(sample);
  const std::string before = sample.memory();
  EXPECT_EQ(run(fault.operation, sample.request), fault.status);
  const std::string message = tilewise_last_error();
  EXPECT_EQ(message.rfind(fault.message.front(), 0), 0u) << message;
  for (const char* part : fault.message) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" not in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_EQ(sample.memory(), before);  // nothing was written
}

}  // namespace tilewise::tests
