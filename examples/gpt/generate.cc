#include "generate.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "random.h"

namespace gpt {

template <class T>
Decoder<T>::Decoder(const ModelConfig& config, Parameters<T>& parameters, std::int64_t capacity,
                    const Compute& compute)
    : config_(config),
      parameters_(parameters),
      compute_(compute),
      capacity_(capacity),
      product_(compute),
      rotary_(capacity, config.head_dim),
      keys_(static_cast<std::size_t>(config.layers),
            std::vector<T>(static_cast<std::size_t>(capacity * config.kv_width()))),
      values_(keys_),
      residual_(static_cast<std::size_t>(config.width)),
      normed_(residual_),
      branch_(residual_),
      qkv_(static_cast<std::size_t>(config.qkv_width())),
      attention_(static_cast<std::size_t>(config.q_width())),
      gate_up_(static_cast<std::size_t>(2 * config.mlp_width)),
      mlp_(static_cast<std::size_t>(config.mlp_width)),
      logits_(static_cast<std::size_t>(kVocabulary)),
      plan_(tilewise::Operation::kForward, problem(nullptr, nullptr, nullptr),
            {"", "", compute.threads()}),
      workspace_(plan_.make_workspace()) {}

template <class T>
const std::vector<T>& Decoder<T>::feed(std::uint8_t token) {
  if (position_ >= capacity_) {
    throw std::length_error("Decoder: the cache holds " + std::to_string(capacity_) +
                            " bytes and is full");
  }
  const auto add_branch = [&] {
    for (std::size_t j = 0; j < residual_.size(); ++j) residual_[j] += branch_[j];
  };
  keys_in_use_ = position_ + 1;
  embed(compute_, parameters_.embedding().data, &token, 1, config_.width, residual_.data());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const LayerWeights<T> weights = parameters_.layer(static_cast<std::int64_t>(i));
    rms_norm(compute_, residual_.data(), weights.attention_gain, 1, config_.width, normed_.data());
    project(normed_, weights.qkv, qkv_);
    attend(i);
    project(attention_, weights.out, branch_);
    add_branch();
    rms_norm(compute_, residual_.data(), weights.mlp_gain, 1, config_.width, normed_.data());
    project(normed_, weights.gate_up, gate_up_);
    swiglu(compute_, gate_up_.data(), 1, config_.mlp_width, mlp_.data());
    project(mlp_, weights.down, branch_);
    add_branch();
  }
  rms_norm(compute_, residual_.data(), parameters_.final_gain(), 1, config_.width, normed_.data());
  project(normed_, transposed(parameters_.embedding()), logits_);
  ++position_;
  return logits_;
}

// Rotates q and k, appends k and v to the cache, and computes the attention of q over all of it.
template <class T>
void Decoder<T>::attend(std::size_t layer) {
  rotary_.apply(compute_, config_, {1, {&position_, 1}}, Rotary<T>::Direction::kForward,
                qkv_.data());
  const T* key = qkv_.data() + config_.q_width();
  const T* value = key + config_.kv_width();
  std::copy(key, value, keys_[layer].data() + position_ * config_.kv_width());
  std::copy(value, value + config_.kv_width(),
            values_[layer].data() + position_ * config_.kv_width());
  plan_.run(problem(qkv_.data(), keys_[layer].data(), values_[layer].data()), workspace_,
            compute_.executor());
}

template <class T>
void Decoder<T>::project(const std::vector<T>& x, const Matrix<T>& w, std::vector<T>& y) {
  product_(matrix<const T>(x.data(), 1, w.rows), read(w), matrix(y.data(), 1, w.columns),
           Store::kReplace);
}

template <class T>
tilewise::Problem Decoder<T>::problem(const T* q, const T* k, const T* v) {
  const auto view = [](const T* data, std::initializer_list<std::int64_t> shape) {
    return tilewise::tensor(const_cast<T*>(data), tilewise::dtype_of<T>, shape);
  };
  tilewise::Problem problem;
  problem.q = view(q, {1, 1, config_.heads, config_.head_dim});
  problem.k = view(k, {1, capacity_, config_.kv_heads, config_.head_dim});
  problem.v = view(v, {1, capacity_, config_.kv_heads, config_.head_dim});
  problem.out = view(attention_.data(), {1, 1, config_.heads, config_.head_dim});
  problem.seqused_k = tilewise::tensor(&keys_in_use_, TILEWISE_INT64, {1});
  return problem;
}

namespace {

// Returns a byte drawn from softmax(logits / temperature).
template <class T>
std::uint8_t draw(const std::vector<T>& logits, double temperature, Random& random) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::vector<double> cumulative;
  double sum = 0;
  for (const T logit : logits) {
    sum += std::exp((static_cast<double>(logit) - top) / temperature);
    cumulative.push_back(sum);
  }
  const auto place = std::upper_bound(cumulative.begin(), cumulative.end(), random.uniform() * sum);
  return static_cast<std::uint8_t>(
      std::min<std::ptrdiff_t>(place - cumulative.begin(), kVocabulary - 1));
}

}  // namespace

template <class T>
std::string generate(Decoder<T>& decoder, const std::string& prompt,
                     const GenerateOptions& options) {
  Random random(options.seed);
  std::string text;
  const std::vector<T>* logits = nullptr;
  for (const char c : prompt) logits = &decoder.feed(static_cast<std::uint8_t>(c));
  for (std::int64_t i = 0; logits != nullptr && i < options.bytes; ++i) {
    const std::uint8_t byte = draw(*logits, options.temperature, random);
    text.push_back(static_cast<char>(byte));
    if (i + 1 < options.bytes) logits = &decoder.feed(byte);
  }
  return text;
}

template class Decoder<float>;
template class Decoder<double>;
template std::string generate(Decoder<float>&, const std::string&, const GenerateOptions&);
template std::string generate(Decoder<double>&, const std::string&, const GenerateOptions&);

}  // namespace gpt
