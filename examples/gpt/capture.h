// Saves the attention inputs of a trained layer on real text, for other programs to run.
#pragma once

#include <cstdint>
#include <string>

#include "compute.h"
#include "config.h"
#include "data.h"
#include "parameters.h"

namespace gpt {

// Runs the model on the first `length` bytes of the corpus and writes q (1, S, H, D), k and v (1,
// S, Hk, D) of the last layer, after the rotary embedding, to a .safetensors file. Throws
// std::runtime_error if the text is shorter or the file cannot be written.
void save_attention_inputs(const ModelConfig& config, Parameters<float>& parameters,
                           const Corpus& corpus, std::int64_t length, const Compute& compute,
                           const std::string& path);

}  // namespace gpt
