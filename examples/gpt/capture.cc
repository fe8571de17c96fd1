#include "capture.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "io/safetensors.h"
#include "model.h"

namespace gpt {
namespace {

namespace io = tilewise::io;

// Copies the columns from `first` on of the rows of qkv (S, row_width) to a tensor (1, S, heads,
// D).
io::NamedTensor take(const std::string& name, const std::vector<float>& qkv,
                     const ModelConfig& config, std::int64_t first, std::int64_t heads) {
  const std::int64_t row_width = config.qkv_width();
  const std::int64_t width = heads * config.head_dim;
  const std::int64_t length = static_cast<std::int64_t>(qkv.size()) / row_width;
  const std::int64_t shape[] = {1, length, heads, config.head_dim};
  io::Array array = io::make_array(io::ElementType::f32, shape);
  const std::span<float> elements = array.writable_elements<float>();
  for (std::int64_t row = 0; row < length; ++row) {
    const float* from = qkv.data() + row * row_width + first;
    std::copy(from, from + width, elements.data() + row * width);
  }
  return {name, array};
}

}  // namespace

void save_attention_inputs(const ModelConfig& config, Parameters<float>& parameters,
                           const Corpus& corpus, std::int64_t length, const Compute& compute,
                           const std::string& path) {
  if (static_cast<std::int64_t>(corpus.bytes.size()) < length) {
    throw std::runtime_error("the text has " + std::to_string(corpus.bytes.size()) +
                             " bytes, must be at least " + std::to_string(length));
  }
  Model<float> model(config, 1, length, "", compute);
  model.forward(parameters, std::span(corpus.bytes).first(static_cast<std::size_t>(length)));
  const std::vector<float>& qkv = model.activations(config.layers - 1).qkv;
  const std::int64_t k_at = config.q_width();
  const std::int64_t v_at = k_at + config.kv_width();
  io::TensorFile file;
  file.tensors.push_back(take("q", qkv, config, 0, config.heads));
  file.tensors.push_back(take("k", qkv, config, k_at, config.kv_heads));
  file.tensors.push_back(take("v", qkv, config, v_at, config.kv_heads));
  io::write_safetensors(path, file);
}

}  // namespace gpt
