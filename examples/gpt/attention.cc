#include "attention.h"

namespace gpt {

using tilewise::Operation;

namespace {

template <class Plan>
tilewise::Workspace workspace_of(const Plan& plan) {
  return std::visit([](const auto& made) { return made.make_workspace(); }, plan);
}

}  // namespace

template <class T>
Attention<T>::Attention(const ModelConfig& config, std::int64_t batch, std::int64_t length,
                        const std::string& kernel, const Compute& compute, const Ranks* ranks)
    : config_(config),
      batch_(batch),
      length_(ranks == nullptr ? length
                               : static_cast<std::int64_t>(ranks->positions(length).size())),
      compute_(compute),
      forward_plan_(make_plan(Operation::kForward, forward_problem(nullptr, nullptr, nullptr),
                              length, {kernel, "", compute.threads()}, ranks)),
      backward_plan_(make_plan(Operation::kBackward, backward_problem({}), length,
                               {kernel, "", compute.threads()}, ranks)),
      forward_workspace_(workspace_of(forward_plan_)),
      backward_workspace_(workspace_of(backward_plan_)) {}

template <class T>
typename Attention<T>::AttentionPlan Attention<T>::make_plan(Operation operation,
                                                             const tilewise::Problem& problem,
                                                             std::int64_t length,
                                                             const tilewise::PlanOptions& options,
                                                             const Ranks* ranks) {
  if (ranks == nullptr) return tilewise::Plan(operation, problem, options);
  tilewise::DistributedOptions distributed;
  distributed.q_len = distributed.k_len = length;
  distributed.schedule = Ranks::kSchedule;
  distributed.kernels = options;
  return tilewise::DistributedPlan(operation, problem, distributed, ranks->communicator());
}

template <class T>
std::string Attention<T>::kernel() const {
  const auto* const plan = std::get_if<tilewise::Plan>(&forward_plan_);
  return plan != nullptr ? plan->kernel() : "ring";
}

template <class T>
void Attention<T>::forward(const T* qkv, T* out, T* lse) const {
  const tilewise::Problem problem = forward_problem(qkv, out, lse);
  std::visit([&](const auto& plan) { plan.run(problem, forward_workspace_, compute_.executor()); },
             forward_plan_);
}

template <class T>
void Attention<T>::backward(const Gradient& arrays) const {
  const tilewise::Problem problem = backward_problem(arrays);
  std::visit([&](const auto& plan) { plan.run(problem, backward_workspace_, compute_.executor()); },
             backward_plan_);
}

template <class T>
AttentionMemory Attention<T>::memory() const {
  const std::size_t rows = static_cast<std::size_t>(batch_ * config_.heads * length_);
  return {forward_workspace_.bytes(), backward_workspace_.bytes(), rows * sizeof(T)};
}

// Returns heads of a (B, S, row_width) buffer as (B, S, heads, D). The interface has one type for
// inputs and outputs.
template <class T>
tilewise::Tensor Attention<T>::view(const T* first, std::int64_t heads,
                                    std::int64_t row_width) const {
  return tilewise::tensor(const_cast<T*>(first), tilewise::dtype_of<T>,
                          {batch_, length_, heads, config_.head_dim},
                          {length_ * row_width, row_width, config_.head_dim, 1});
}

template <class T>
tilewise::Problem Attention<T>::forward_problem(const T* qkv, const T* out, const T* lse) const {
  const std::int64_t row = config_.qkv_width();
  const std::int64_t k_at = qkv == nullptr ? 0 : config_.q_width();
  const std::int64_t v_at = qkv == nullptr ? 0 : config_.q_width() + config_.kv_width();
  tilewise::Problem problem;
  problem.causal = 1;
  problem.q = view(qkv, config_.heads, row);
  problem.k = view(qkv + k_at, config_.kv_heads, row);
  problem.v = view(qkv + v_at, config_.kv_heads, row);
  problem.out = view(out, config_.heads, config_.q_width());
  problem.lse = tilewise::tensor(const_cast<T*>(lse), tilewise::dtype_of<T>,
                                 {batch_, config_.heads, length_});
  return problem;
}

template <class T>
tilewise::Problem Attention<T>::backward_problem(const Gradient& arrays) const {
  const std::int64_t row = config_.qkv_width();
  const std::int64_t k_at = arrays.dqkv == nullptr ? 0 : config_.q_width();
  const std::int64_t v_at = arrays.dqkv == nullptr ? 0 : config_.q_width() + config_.kv_width();
  tilewise::Problem problem = forward_problem(arrays.qkv, arrays.out, arrays.lse);
  problem.dout = view(arrays.dout, config_.heads, config_.q_width());
  problem.dq = view(arrays.dqkv, config_.heads, row);
  problem.dk = view(arrays.dqkv + k_at, config_.kv_heads, row);
  problem.dv = view(arrays.dqkv + v_at, config_.kv_heads, row);
  return problem;
}

template class Attention<float>;
template class Attention<double>;

}  // namespace gpt
