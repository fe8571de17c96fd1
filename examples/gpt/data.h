// The training text: the project's own documentation and sources.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "random.h"

namespace gpt {

struct Corpus {
  std::vector<std::uint8_t> bytes;
  std::int64_t files = 0;
};

// Reads README.md, then every .md file of docs/, then the sources (.h .hpp .c .cc .cu) of include/
// and src/, each folder in the order of the paths. Missing files are left out. Throws
// std::runtime_error if there is no such file.
Corpus read_corpus(const std::filesystem::path& repository);

// A batch: inputs (B, S), and for each of them the byte that follows it.
struct Batch {
  std::vector<std::uint8_t> inputs;
  std::vector<std::uint8_t> targets;
};

// Fills `batch` with windows from random positions. Throws std::runtime_error if the text is not
// longer than `length`.
void sample_batch(const Corpus& corpus, std::int64_t sequences, std::int64_t length, Random& random,
                  Batch* batch);

// Keeps the tokens with these positions of each sequence of `length` tokens.
void keep_positions(std::span<const std::int64_t> positions, std::int64_t length, Batch* batch);

}  // namespace gpt
