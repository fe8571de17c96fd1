#include "attention.h"

namespace gpt {

using tilewise::Operation;

template <class T>
Attention<T>::Attention(const ModelConfig& config, std::int64_t batch, std::int64_t length,
                        const std::string& kernel, const Compute& compute)
    : config_(config),
      batch_(batch),
      length_(length),
      compute_(compute),
      forward_plan_(Operation::kForward, forward_problem(nullptr, nullptr, nullptr),
                    {kernel, "", compute.threads()}),
      backward_plan_(Operation::kBackward, backward_problem({}), {kernel, "", compute.threads()}),
      forward_workspace_(forward_plan_.make_workspace()),
      backward_workspace_(backward_plan_.make_workspace()) {}

template <class T>
void Attention<T>::forward(const T* qkv, T* out, T* lse) const {
  forward_plan_.run(forward_problem(qkv, out, lse), forward_workspace_, compute_.executor());
}

template <class T>
void Attention<T>::backward(const Gradient& arrays) const {
  backward_plan_.run(backward_problem(arrays), backward_workspace_, compute_.executor());
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
