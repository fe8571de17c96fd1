#include "support.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>

#include "io/npy.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::cli_test {
namespace {

std::filesystem::path fresh_directory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tilewise-cli-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return pattern;
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::int32_t dtype_of(io::ElementType type) {
  switch (type) {
    case io::ElementType::f64:
      return TILEWISE_FP64;
    case io::ElementType::bf16:
      return TILEWISE_BF16;
    case io::ElementType::f16:
      return TILEWISE_FP16;
    case io::ElementType::e4m3:
      return TILEWISE_E4M3;
    case io::ElementType::e5m2:
      return TILEWISE_E5M2;
    default:
      return TILEWISE_FP32;
  }
}

}  // namespace

Cli::Cli() : directory_(fresh_directory()), streams_(fresh_directory()) {}

Cli::~Cli() {
  std::filesystem::remove_all(directory_);
  std::filesystem::remove_all(streams_);
}

Outcome Cli::run(const std::string& arguments, const std::string& redirections,
                 const std::string& variables) const {
  return run_command("'" TILEWISE_CLI "' " + arguments, redirections, variables);
}

nlohmann::json Cli::explain_json(const std::string& arguments) const {
  const Outcome outcome = run("explain " + arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
  EXPECT_EQ(outcome.err, "") << arguments;
  return nlohmann::json::parse(outcome.out);
}

Outcome Cli::run_command(const std::string& program, const std::string& redirections,
                         const std::string& variables) const {
  const std::string out = (streams_ / "out").string();
  const std::string err = (streams_ / "err").string();
  const std::string command = "cd '" + directory_.string() + "' && exec env " + variables + " " +
                              program + " >'" + out + "' 2>'" + err + "' " + redirections;
  const int status = std::system(command.c_str());
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return {code, slurp(out), slurp(err)};
}

void Cli::write(const std::string& name, const io::Array& array) const {
  io::write_npy(path(name), array);
}

io::Array Cli::read(const std::string& name) const { return io::read_npy(path(name)); }

std::map<std::string, std::string> Cli::contents() const {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    files[entry.path().filename().string()] = slurp(entry.path());
  }
  return files;
}

io::Array random_array(io::ElementType type, const std::vector<std::int64_t>& shape,
                       std::uint64_t seed) {
  io::Array array = io::make_array(type, shape);
  tilewise_tensor tensor = {};
  tensor.data = array.writable.data();
  tensor.dtype = dtype_of(type);
  verify::Random random(seed);
  const std::int64_t count = io::element_count(shape).value();
  for (std::int64_t i = 0; i < count; ++i) verify::write_element(tensor, i, random.normal());
  return array;
}

io::Array index_array(const std::vector<std::int64_t>& numbers,
                      const std::vector<std::int64_t>& shape) {
  io::Array array = io::make_array(io::ElementType::i64, shape);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(numbers));
  std::copy(bytes.begin(), bytes.end(), array.writable.begin());
  return array;
}

}  // namespace tilewise::cli_test
