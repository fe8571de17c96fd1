// A token plan that Python holds.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise_distributed.h>

#include <memory>

namespace tilewise::python {

class HeldTokenPlan {
 public:
  // `mask` holds the options that describe the mask, `heads` the number of query heads or None, and
  // `sizes` is (q_len, k_len, size, chunk_rows, stages). Throws the exceptions of check().
  HeldTokenPlan(const char* caller, const nanobind::dict& mask, nanobind::handle heads,
                const nanobind::tuple& sizes);

  nanobind::tuple info() const;                          // as tilewise.distributed.TokenPlanInfo
  nanobind::tuple info_of(nanobind::handle rank) const;  // as tilewise.distributed.RankInfo
  nanobind::list ranges_of(std::int32_t side, nanobind::handle rank) const;
  const tilewise_token_plan* get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(tilewise_token_plan* plan) const { tilewise_token_plan_destroy(plan); }
  };
  std::unique_ptr<tilewise_token_plan, Destroy> plan_;
};

void bind_token_plan(nanobind::module_& module);

}  // namespace tilewise::python
