#include "model.h"

#include <algorithm>
#include <numeric>

namespace gpt {
namespace {

std::vector<std::int64_t> positions_of(std::int64_t length, const Ranks* ranks) {
  if (ranks != nullptr) return ranks->positions(length);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

}  // namespace

template <class T>
Model<T>::Model(const ModelConfig& config, std::int64_t batch, std::int64_t length,
                const std::string& attention_kernel, const Compute& compute, const Ranks* ranks)
    : config_(config),
      positions_(positions_of(length, ranks)),
      tokens_(batch * static_cast<std::int64_t>(positions_.size())),
      all_tokens_(batch * length),
      compute_(compute),
      attention_(config, batch, length, attention_kernel, compute, ranks),
      product_(compute),
      rotary_(length, config.head_dim),
      layers_(static_cast<std::size_t>(config.layers)) {
  const auto allocate = [&](std::vector<T>& array, std::int64_t width) {
    array.resize(static_cast<std::size_t>(tokens_ * width));
  };
  for (LayerActivations<T>& kept : layers_) {
    for (std::vector<T>* array :
         {&kept.input, &kept.attention_normed, &kept.middle, &kept.mlp_normed})
      allocate(*array, config.width);
    allocate(kept.qkv, config.qkv_width());
    allocate(kept.attention, config.q_width());
    allocate(kept.lse, config.heads);
    allocate(kept.gate_up, 2 * config.mlp_width);
    allocate(kept.mlp, config.mlp_width);
  }
  for (std::vector<T>* array : {&final_input_, &final_normed_, &branch_, &dresidual_})
    allocate(*array, config.width);
  allocate(logits_, kVocabulary);
  allocate(dattention_, config.q_width());
  allocate(dqkv_, config.qkv_width());
  allocate(dmlp_, config.mlp_width);
  allocate(dgate_up_, 2 * config.mlp_width);
}

// ---- forward ------------------------------------------------------------------------------------

template <class T>
std::span<const T> Model<T>::forward(Parameters<T>& parameters,
                                     std::span<const std::uint8_t> tokens) {
  embed(compute_, parameters.embedding().data, tokens.data(), tokens_, config_.width,
        layers_[0].input.data());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    std::vector<T>& output = i + 1 < layers_.size() ? layers_[i + 1].input : final_input_;
    layer_forward(parameters.layer(static_cast<std::int64_t>(i)), layers_[i], output.data());
  }
  rms_norm(compute_, final_input_.data(), parameters.final_gain(), tokens_, config_.width,
           final_normed_.data());
  project(final_normed_, transposed(parameters.embedding()), logits_);
  return logits_;
}

template <class T>
void Model<T>::layer_forward(const LayerWeights<T>& weights, LayerActivations<T>& kept, T* output) {
  rms_norm(compute_, kept.input.data(), weights.attention_gain, tokens_, config_.width,
           kept.attention_normed.data());
  project(kept.attention_normed, weights.qkv, kept.qkv);
  rotary_.apply(compute_, config_, {tokens_, positions_}, Rotary<T>::Direction::kForward,
                kept.qkv.data());
  attention_.forward(kept.qkv.data(), kept.attention.data(), kept.lse.data());
  project(kept.attention, weights.out, branch_);
  add(kept.input, branch_, kept.middle.data());

  rms_norm(compute_, kept.middle.data(), weights.mlp_gain, tokens_, config_.width,
           kept.mlp_normed.data());
  project(kept.mlp_normed, weights.gate_up, kept.gate_up);
  swiglu(compute_, kept.gate_up.data(), tokens_, config_.mlp_width, kept.mlp.data());
  project(kept.mlp, weights.down, branch_);
  add(kept.middle, branch_, output);
}

// ---- backward -----------------------------------------------------------------------------------

template <class T>
double Model<T>::step(Parameters<T>& parameters, std::span<const std::uint8_t> tokens,
                      std::span<const std::uint8_t> targets, Parameters<T>& gradient) {
  forward(parameters, tokens);
  const double loss = cross_entropy(compute_, targets.data(), tokens_, all_tokens_, logits_.data());
  backward(parameters, tokens, gradient);
  return loss;
}

template <class T>
void Model<T>::backward(Parameters<T>& parameters, std::span<const std::uint8_t> tokens,
                        Parameters<T>& gradient) {
  const Matrix<T> dembedding = gradient.embedding();
  const Matrix<const T> dlogits = matrix<const T>(logits_.data(), tokens_, kVocabulary);
  product_(dlogits, read(parameters.embedding()), matrix(branch_.data(), tokens_, config_.width),
           Store::kReplace);
  product_(transposed(dlogits), matrix<const T>(final_normed_.data(), tokens_, config_.width),
           dembedding, Store::kAdd);
  std::fill(dresidual_.begin(), dresidual_.end(), T(0));
  rms_norm_backward<T>(compute_,
                       {final_input_.data(), parameters.final_gain(), branch_.data(),
                        dresidual_.data(), gradient.final_gain()},
                       tokens_, config_.width);
  for (std::int64_t i = config_.layers - 1; i >= 0; --i) {
    const LayerActivations<T>& kept = layers_[static_cast<std::size_t>(i)];
    mlp_backward(parameters.layer(i), kept, gradient.layer(i));
    attention_backward(parameters.layer(i), kept, gradient.layer(i));
  }
  embed_backward(compute_, tokens.data(), dresidual_.data(), tokens_, config_.width,
                 dembedding.data);
}

template <class T>
void Model<T>::mlp_backward(const LayerWeights<T>& weights, const LayerActivations<T>& kept,
                            const LayerWeights<T>& gradient) {
  project_backward({kept.mlp, weights.down, dresidual_, dmlp_, gradient.down});
  swiglu_backward(compute_, kept.gate_up.data(), dmlp_.data(), tokens_, config_.mlp_width,
                  dgate_up_.data());
  project_backward({kept.mlp_normed, weights.gate_up, dgate_up_, branch_, gradient.gate_up});
  rms_norm_backward<T>(
      compute_,
      {kept.middle.data(), weights.mlp_gain, branch_.data(), dresidual_.data(), gradient.mlp_gain},
      tokens_, config_.width);
}

template <class T>
void Model<T>::attention_backward(const LayerWeights<T>& weights, const LayerActivations<T>& kept,
                                  const LayerWeights<T>& gradient) {
  project_backward({kept.attention, weights.out, dresidual_, dattention_, gradient.out});
  attention_.backward(
      {kept.qkv.data(), kept.attention.data(), kept.lse.data(), dattention_.data(), dqkv_.data()});
  rotary_.apply(compute_, config_, {tokens_, positions_}, Rotary<T>::Direction::kBackward,
                dqkv_.data());
  project_backward({kept.attention_normed, weights.qkv, dqkv_, branch_, gradient.qkv});
  rms_norm_backward<T>(compute_,
                       {kept.input.data(), weights.attention_gain, branch_.data(),
                        dresidual_.data(), gradient.attention_gain},
                       tokens_, config_.width);
}

// ---- shared -------------------------------------------------------------------------------------

template <class T>
void Model<T>::project(const std::vector<T>& x, const Matrix<T>& w, std::vector<T>& y) {
  product_(matrix<const T>(x.data(), tokens_, w.rows), read(w),
           matrix(y.data(), tokens_, w.columns), Store::kReplace);
}

template <class T>
void Model<T>::project_backward(const ProjectionGradient& arrays) {
  const Matrix<T>& w = arrays.w;
  const Matrix<const T> dy = matrix<const T>(arrays.dy.data(), tokens_, w.columns);
  const Matrix<const T> x = matrix<const T>(arrays.x.data(), tokens_, w.rows);
  product_(dy, transposed(read(w)), matrix(arrays.dx.data(), tokens_, w.rows), Store::kReplace);
  product_(transposed(x), dy, arrays.dw, Store::kAdd);
}

template <class T>
void Model<T>::add(const std::vector<T>& x, const std::vector<T>& y, T* out) {
  constexpr std::int64_t kBlock = 8192;
  compute_.parallel_blocks(static_cast<std::int64_t>(x.size()), kBlock,
                           [&](std::int64_t first, std::int64_t last) {
                             const T* left = x.data();
                             const T* right = y.data();
                             for (std::int64_t i = first; i < last; ++i)
                               out[i] = left[i] + right[i];
                           });
}

template class Model<float>;
template class Model<double>;

}  // namespace gpt
