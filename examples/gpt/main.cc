// gpt_demo trains the same small GPT twice, with standard and with tiled attention, and compares.
#include <algorithm>
#include <cstdio>
#include <string>

#include "arguments.h"
#include "attention.h"
#include "capture.h"
#include "data.h"
#include "generate.h"
#include "io/temporaries.h"
#include "report.h"
#include "train.h"

namespace {

constexpr const char* kHelp =
    R"(Usage: gpt_demo --source DIR [options]
Trains a byte-level GPT on the documentation and sources in DIR, once with standard attention and
once with tiled attention, from the same seed. Prints both loss curves, the memory of attention and
some generated text. Fails if the curves differ by 1e-3 or more.

  --source DIR   a checkout of Tilewise: README.md, docs/, include/, src/
  --steps N      training steps of each run (default 150, 1 to 100000)
  --seed N       of weights, batches and generated text (default 1)
  --save FILE    writes Q, K, V of the last layer on 2048 bytes of the text (.safetensors)
  --threads N    0: as many as the machine grants (default 0, at most 1024)
  --help

Example: gpt_demo --source . --steps 50
)";

constexpr double kAllowedDifference = 1e-3;
constexpr std::int64_t kSavedLength = 2048;  // several times the length of training
constexpr const char* kStandardKernel = "three_pass";
constexpr const char* kLibraryChoice = "";

struct Arguments {
  std::string source;
  std::string save;
  std::int64_t steps = 150;
  std::int64_t seed = 1;
  std::int64_t threads = 0;
};

Arguments parse_arguments(int argc, char** argv) {
  const gpt::Arguments given(argc, argv, {"--source", "--save", "--steps", "--seed", "--threads"});
  Arguments arguments;
  arguments.save = given.text("--save");
  arguments.steps = given.integer("--steps", 1, 100000, arguments.steps);
  arguments.seed = given.integer("--seed", 0, INT64_MAX - 1, arguments.seed);
  arguments.threads = given.integer("--threads", 0, 1024, arguments.threads);
  arguments.source = given.required("--source");
  return arguments;
}

void print_header(const gpt::ModelConfig& config, const gpt::TrainOptions& options,
                  const gpt::Corpus& corpus, const gpt::Compute& compute) {
  const std::size_t weights = gpt::Parameters<float>(config).values.size();
  std::printf("A byte-level GPT, trained twice from the same seed\n\n");
  std::printf("  text      %lld files of this repository, %s\n",
              static_cast<long long>(corpus.files), gpt::format_bytes(corpus.bytes.size()).c_str());
  std::printf(
      "  model     %lld layers of width %lld, %lld query heads on %lld key/value heads of %lld, "
      "%.2f million weights\n",
      static_cast<long long>(config.layers), static_cast<long long>(config.width),
      static_cast<long long>(config.heads), static_cast<long long>(config.kv_heads),
      static_cast<long long>(config.head_dim), static_cast<double>(weights) / 1e6);
  std::printf("  training  %lld steps of %lld x %lld bytes, fp32, AdamW, %d threads\n",
              static_cast<long long>(options.steps), static_cast<long long>(options.sequences),
              static_cast<long long>(options.length), compute.threads());
  std::fflush(stdout);
}

gpt::TrainResult<float> run_training(const char* name, const char* kernel,
                                     const gpt::ModelConfig& config, gpt::TrainOptions options,
                                     const gpt::Corpus& corpus, const gpt::Compute& compute) {
  gpt::ProgressLine progress(name, options.steps);
  options.attention_kernel = kernel;
  options.on_step = [&](std::int64_t step, double loss) { progress.update(step, loss); };
  return gpt::train<float>(config, options, corpus, compute);
}

void print_attention_memory(const gpt::ModelConfig& config, const gpt::TrainOptions& options,
                            const gpt::Compute& compute) {
  const std::int64_t shapes[][2] = {{options.sequences, options.length}, {1, 1024}, {1, 4096}};
  std::vector<gpt::MemoryRow> rows;
  for (const auto [sequences, length] : shapes) {
    const gpt::Attention<float> standard(config, sequences, length, kStandardKernel, compute);
    const gpt::Attention<float> tiled(config, sequences, length, kLibraryChoice, compute);
    rows.push_back({sequences, length, config.heads, standard.memory(), tiled.memory()});
  }
  gpt::print_memory(rows);
}

// Prints the curves and returns whether they agree.
bool report_curves(const gpt::TrainResult<float>& standard, const gpt::TrainResult<float>& tiled) {
  const std::int64_t steps = static_cast<std::int64_t>(standard.losses.size());
  std::printf("\n  standard  %5.1f s  (kernel %s)\n", standard.seconds,
              standard.forward_kernel.c_str());
  std::printf("  tiled     %5.1f s  (kernel %s)\n", tiled.seconds, tiled.forward_kernel.c_str());
  std::printf("\nLoss in nats per byte, mean of the steps\n\n");
  gpt::print_curves(standard.losses, tiled.losses, std::max<std::int64_t>(1, (steps + 14) / 15));
  const double difference = gpt::largest_difference(standard.losses, tiled.losses);
  const bool agree = difference < kAllowedDifference;
  std::printf("\n  Largest difference of a step: %.1e (allowed: below %.0e)%s\n", difference,
              kAllowedDifference, agree ? "" : "  FAILED");
  return agree;
}

void print_generated(const gpt::ModelConfig& config, gpt::Parameters<float>& parameters,
                     std::uint64_t seed, const gpt::Compute& compute) {
  const std::string prompt = "// The ";
  gpt::GenerateOptions options;
  options.seed = seed;
  gpt::Decoder<float> decoder(config, parameters,
                              static_cast<std::int64_t>(prompt.size()) + options.bytes, compute);
  gpt::print_text(prompt + gpt::generate(decoder, prompt, options));
}

int run(int argc, char** argv) {
  tilewise::io::remove_temporaries_on_signal();
  const Arguments arguments = parse_arguments(argc, argv);
  const gpt::Compute compute(static_cast<std::int32_t>(arguments.threads));
  const gpt::Corpus corpus = gpt::read_corpus(arguments.source);
  const gpt::ModelConfig config;
  gpt::TrainOptions options;
  options.steps = arguments.steps;
  options.seed = static_cast<std::uint64_t>(arguments.seed);
  print_header(config, options, corpus, compute);

  const gpt::TrainResult<float> standard =
      run_training("standard", kStandardKernel, config, options, corpus, compute);
  gpt::TrainResult<float> tiled =
      run_training("tiled", kLibraryChoice, config, options, corpus, compute);
  const bool agree = report_curves(standard, tiled);

  std::printf("\nMemory of attention in one layer\n\n");
  print_attention_memory(config, options, compute);
  std::printf(
      "\n  workspace: the larger of forward and backward, as the plans state it\n"
      "  probabilities: what textbook training stores of each layer until its backward pass\n"
      "  LSE: what is stored instead\n");

  std::printf("\nText from the model trained with tiled attention\n\n");
  print_generated(config, tiled.parameters, options.seed, compute);
  if (!arguments.save.empty()) {
    gpt::save_attention_inputs(config, tiled.parameters, corpus, kSavedLength, compute,
                               arguments.save);
    std::printf("\nQ, K, V of its last layer on %lld bytes of the text are in %s\n",
                static_cast<long long>(kSavedLength), arguments.save.c_str());
  }
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return gpt::run_program(argc, argv, kHelp, run); }
