#include "support.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "io/file_error.h"

namespace tilewise::io {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILEWISE_INSTRUMENTED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TILEWISE_INSTRUMENTED 1
#endif
#endif

// The limits apply to the program as users build it. Sanitizers and missing optimisation slow a
// parser down about twentyfold, and sanitizers reserve terabytes of addresses.
#if defined(TILEWISE_INSTRUMENTED)
constexpr bool kLimitAddresses = false;
#else
constexpr bool kLimitAddresses = true;
#endif
#if defined(NDEBUG) && !defined(TILEWISE_INSTRUMENTED)
constexpr double kLongestSeconds = 0.010;
#else
constexpr double kLongestSeconds = 0.250;
#endif
constexpr std::int64_t kLargestMemory = 64'000'000;  // bytes
constexpr int kTries = 3;  // the smallest time counts: other programs share the caches

struct Cost {
  double seconds;
  std::int64_t bytes;  // touched at the peak, on top of those at the start
  char message[1000];
};

double processor_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns a line of /proc/self/status, in bytes.
std::int64_t memory_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no line " + name);
}

void limit_addresses(std::int64_t file_size) {
  if (!kLimitAddresses) return;
  const auto limit = static_cast<rlim_t>(memory_status("VmSize") + file_size + kLargestMemory);
  const rlimit limits = {limit, limit};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limits), 0);
}

Cost measure(const std::string& path, std::int64_t file_size,
             const std::function<void(const std::string&)>& read) {
  int ends[2];
  Cost cost = {};
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const int status = run_in_child([&] {
    limit_addresses(file_size);
    const std::int64_t before = memory_status("VmHWM");
    const double start = processor_seconds();
    const std::string message = file_error([&] { read(path); });
    cost.seconds = processor_seconds() - start;
    cost.bytes = memory_status("VmHWM") - before;
    std::strncpy(cost.message, message.c_str(), sizeof(cost.message) - 1);
    if (::write(ends[1], &cost, sizeof(cost)) != sizeof(cost)) std::abort();
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child status " << status;
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], &cost, sizeof(cost)), static_cast<ssize_t>(sizeof(cost)));
  ::close(ends[0]);
  return cost;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = ::testing::TempDir() + "tilewise-io-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string result;
  for (int i = 0; i < bytes; ++i) result += static_cast<char>((value >> (8 * i)) & 0xff);
  return result;
}

std::string npy_file(std::string_view header, std::size_t data_size, int version) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  file += little_endian(header.size(), version == 1 ? 2 : 4);
  return file + std::string(header) + std::string(data_size, '\1');
}

std::string safetensors_file(std::string_view header, std::size_t data_size) {
  return little_endian(header.size(), 8) + std::string(header) + std::string(data_size, '\1');
}

Array pattern_array(ElementType type, std::vector<std::int64_t> shape) {
  Array array = make_array(type, shape);
  for (std::size_t i = 0; i < array.writable.size(); ++i) {
    array.writable[i] = static_cast<std::byte>((i + 7 * shape.size()) % 251);
  }
  return array;
}

bool same_array(const Array& a, const Array& b) {
  return a.type == b.type && a.shape == b.shape &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

std::vector<std::vector<std::int64_t>> interesting_shapes() {
  return {{},
          {0},
          {1},
          {3},
          {2, 3},
          {0, 5},
          {5, 0},
          {3, 1, 2},
          {2, 0, 4},
          {1, 1},
          {2, 3, 4, 5},
          {129},
          {7, 1, 9},
          {1000000, 0},
          {1LL << 40, 0, 1 << 10},
          std::vector<std::int64_t>(kMaxRank, 1)};
}

std::string file_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

int run_in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(99);
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

void expect_refused(const std::vector<HostileFile>& files,
                    const std::function<void(const std::string&)>& read) {
  const TemporaryFolder folder;
  const std::string path = folder / "hostile";
  double slowest = 0;
  std::int64_t largest = 0;
  for (const HostileFile& file : files) {
    SCOPED_TRACE(file.name);
    write_bytes(path, file.bytes);
    Cost cost = measure(path, static_cast<std::int64_t>(file.bytes.size()), read);
    for (int i = 1; i < kTries && cost.seconds > kLongestSeconds; ++i) {
      cost = measure(path, static_cast<std::int64_t>(file.bytes.size()), read);
    }
    const std::string_view message = cost.message;
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    EXPECT_NE(message.find(file.message), std::string_view::npos)
        << "message: " << message << "\nexpected in it: " << file.message;
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    })) << message;
    EXPECT_LE(cost.seconds, kLongestSeconds);
    EXPECT_LE(cost.bytes, kLargestMemory);
    slowest = std::max(slowest, cost.seconds);
    largest = std::max(largest, cost.bytes);
  }
  std::printf("%zu files: slowest %.2f ms, most memory %.1f MB\n", files.size(), 1e3 * slowest,
              1e-6 * static_cast<double>(largest));
}

}  // namespace tilewise::io
