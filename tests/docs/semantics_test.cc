// Checks docs/semantics.md: its pictures of masks are what math/mask_rule.h makes of their
// captions, and the tests that it names exist.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::tests {
namespace {

constexpr const char* kMarker = "<!-- picture: ";

struct Picture {
  std::string caption;
  std::string text;
};

// Returns every fenced block under a line `<!-- picture: CAPTION -->`.
std::vector<Picture> pictures_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<Picture> pictures;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kMarker, 0) != 0) continue;
    const std::size_t begin = std::string(kMarker).size();
    Picture picture = {line.substr(begin, line.rfind(" -->") - begin), ""};
    std::getline(file, line);
    EXPECT_EQ(line, "```text") << picture.caption;
    while (std::getline(file, line) && line != "```") picture.text += line + "\n";
    pictures.push_back(picture);
  }
  return pictures;
}

// Parses "Sq Sk ALIGNMENT LEFT RIGHT" or "Sq Sk slices q0,q1,k0,k1,kind ...".
std::vector<math::Band> bands_of(const std::string& caption, std::int64_t* rows,
                                 std::int64_t* keys) {
  std::istringstream words(caption);
  std::string kind;
  words >> *rows >> *keys >> kind;
  if (kind != "slices") {
    std::int64_t left = 0;
    std::int64_t right = 0;
    words >> left >> right;
    const std::int64_t diagonal = kind == "bottom-right" ? *keys - *rows : 0;
    return {math::window_band(*rows, *keys, diagonal, left, right)};
  }
  std::vector<math::Band> bands;
  for (std::string word; words >> word;) {
    std::istringstream numbers(word);
    std::array<std::int64_t, 5> slice{};
    char comma = 0;
    for (std::int64_t& number : slice) {
      numbers >> number;
      numbers >> comma;
    }
    bands.push_back(math::slice_band(slice.data(), *rows, *keys, *keys));
  }
  return bands;
}

std::string drawn(const std::string& caption) {
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  const std::vector<math::Band> bands = bands_of(caption, &rows, &keys);
  std::string text;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::string row(static_cast<std::size_t>(keys), '.');
    for (const math::Band& band : bands) {
      const math::KeyRange seen = math::visible_keys(band, i);
      for (std::int64_t j = math::max(seen.begin, 0); j < math::min(seen.end, keys); ++j)
        row[static_cast<std::size_t>(j)] = '#';
    }
    text += row + "\n";
  }
  return text;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the sources of all tests, in one string.
std::string test_sources() {
  std::string text;
  const std::filesystem::path folder = std::filesystem::path(TILEWISE_SOURCE_DIR) / "tests";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".cc") text += text_of(entry.path());
  }
  return text;
}

// The last column of the table of tests has names of the form `Suite` or `Suite.Beginning`.
TEST(Docs, TestsThatAreNamedExist) {
  const std::string page =
      text_of(std::filesystem::path(TILEWISE_SOURCE_DIR) / "docs/semantics.md");
  const std::size_t section = page.find("## Which test holds what");
  ASSERT_NE(section, std::string::npos);
  const std::string table = page.substr(page.find("\n| ", section));
  const std::string sources = test_sources();
  const std::regex name("`([A-Za-z0-9]+)(?:\\.([A-Za-z0-9]+))?`");
  int count = 0;
  for (std::sregex_iterator match(table.begin(), table.end(), name), end; match != end; ++match) {
    const std::string call = "(" + match->str(1) + ", " + match->str(2);
    const bool exists = sources.find("TEST" + call) != std::string::npos ||
                        sources.find("TEST_P" + call) != std::string::npos ||
                        sources.find("TEST_F" + call) != std::string::npos;
    EXPECT_TRUE(exists) << match->str();
    ++count;
  }
  EXPECT_GE(count, 20);
}

TEST(Docs, PicturesOfMasksAreWhatTheMaskRuleDraws) {
  const std::vector<Picture> pictures =
      pictures_of(std::string(TILEWISE_SOURCE_DIR) + "/docs/semantics.md");
  EXPECT_GE(pictures.size(), 8u);
  for (const Picture& picture : pictures)
    EXPECT_EQ(picture.text, drawn(picture.caption)) << picture.caption;
}

}  // namespace
}  // namespace tilewise::tests
