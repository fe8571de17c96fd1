#include "data.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpt {
namespace {

namespace fs = std::filesystem;

// Lists the files below `folder` with one of the extensions, sorted, because the order of
// directories differs between machines.
std::vector<fs::path> list_files(const fs::path& folder,
                                 const std::vector<std::string>& extensions) {
  std::vector<fs::path> files;
  if (!fs::is_directory(folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() &&
        std::find(extensions.begin(), extensions.end(), extension) != extensions.end())
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void append_file(const fs::path& path, Corpus* corpus) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  corpus->bytes.insert(corpus->bytes.end(), std::istreambuf_iterator<char>(file),
                       std::istreambuf_iterator<char>());
  ++corpus->files;
}

}  // namespace

Corpus read_corpus(const fs::path& repository) {
  const std::vector<std::string> documents = {".md"};
  const std::vector<std::string> sources = {".h", ".hpp", ".c", ".cc", ".cu"};
  Corpus corpus;
  if (fs::is_regular_file(repository / "README.md")) append_file(repository / "README.md", &corpus);
  for (const fs::path& path : list_files(repository / "docs", documents))
    append_file(path, &corpus);
  for (const fs::path& path : list_files(repository / "include", sources))
    append_file(path, &corpus);
  for (const fs::path& path : list_files(repository / "src", sources)) append_file(path, &corpus);
  if (corpus.files == 0) {
    throw std::runtime_error(repository.string() +
                             ": no README.md, docs/*.md, include/ or src/ to train on");
  }
  return corpus;
}

void sample_batch(const Corpus& corpus, std::int64_t sequences, std::int64_t length, Random& random,
                  Batch* batch) {
  const std::int64_t starts = static_cast<std::int64_t>(corpus.bytes.size()) - length;
  if (starts <= 0) {
    throw std::runtime_error("the text has " + std::to_string(corpus.bytes.size()) +
                             " bytes, must be more than " + std::to_string(length));
  }
  batch->inputs.clear();
  batch->targets.clear();
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto first = corpus.bytes.begin() + random.below(starts);
    batch->inputs.insert(batch->inputs.end(), first, first + length);
    batch->targets.insert(batch->targets.end(), first + 1, first + length + 1);
  }
}

void keep_positions(std::span<const std::int64_t> positions, std::int64_t length, Batch* batch) {
  for (std::vector<std::uint8_t>* const bytes : {&batch->inputs, &batch->targets}) {
    std::vector<std::uint8_t> kept;
    const auto all = static_cast<std::int64_t>(bytes->size());
    for (std::int64_t first = 0; first < all; first += length) {
      for (const std::int64_t position : positions)
        kept.push_back((*bytes)[static_cast<std::size_t>(first + position)]);
    }
    *bytes = std::move(kept);
  }
}

}  // namespace gpt
