// Runs kernels on a case, between guards, and measures their results against the oracle.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "verify/accuracy.h"
#include "verify/instance.h"
#include "verify/oracle.h"
#include "verify/plain.h"

namespace tilewise::verify {

struct Verdict {
  enum Result { kPassed, kFailed, kUnsupported };
  Result result = kPassed;
  double ratio = 0;  // the largest max_error / limit of its tensors
  std::string text;  // why it failed or is not supported; for a failure, the case on a second line
  std::vector<TensorReport> tensors;
  bool only_biased = false;  // only the mean errors of tensors exceed their limits
};

// Makes the instance once, and the answers when the first kernel takes the case, for any number of
// kernels.
class Judge {
 public:
  // An `edit` changes the inputs before anything runs on them.
  using Edit = std::function<void(const tilewise_problem& request)>;
  explicit Judge(const Case& description, const Edit& edit = {});

  // Runs the named kernel ("" for the library's choice) with the operation of the case, on garbage
  // workspace between guards. It checks the status, the accuracy rule, and writes outside outputs.
  // A mean error fails only if it exceeds its limit for two draws of inputs: elements share the
  // rounding of their row's LSE, so that the mean of one draw fluctuates, while a true bias recurs.
  Verdict judge(const char* kernel, const plan::Options& options = {});

  const Instance& instance() const { return instance_; }

 private:
  // The results with which those of a kernel are compared, besides the oracle's.
  struct Yardstick {
    std::vector<std::unique_ptr<Plain>> plain;  // one for each order of sums
    std::vector<PlainError> other_draws;        // empty until a kernel is over the limit
  };

  // Runs the oracle and the plain attention of the kernel, once each. Throws std::runtime_error if
  // the library refuses.
  void find_answers(const problem::Kernel& kernel);
  // The type to which the kernel rounds probs, if the case is of fp8; kFp32 stands for the case's
  // own dtype.
  problem::Fp8Probs fp8_probs(const problem::Kernel& kernel) const;
  Yardstick& yardstick_of(const problem::Kernel& kernel) {
    return yardsticks_[static_cast<int>(fp8_probs(kernel))];
  }
  Verdict judge_draw(const char* kernel, const plan::Options& options);
  Verdict run(const plan::Plan& plan);
  Verdict run_parts(const char* kernel, const plan::Options& options);
  Verdict run_copied(const problem::Kernel& kernel, const plan::Options& options);
  Verdict verdict_of(const problem::Kernel& kernel, problem::Status status,
                     const std::string& damage);
  std::vector<TensorReport> measure_accuracy(const problem::Kernel& kernel);
  void draw_again(const problem::Kernel& kernel);
  void add_lse_errors(const Judge& judged, std::vector<PlainError>& errors) const;

  Edit edit_;
  Instance instance_;
  Oracle oracle_;
  bool has_oracle_ = false;
  Yardstick yardsticks_[3];  // one for each problem::Fp8Probs
};

}  // namespace tilewise::verify
