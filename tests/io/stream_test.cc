#include "io/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "io/npy.h"
#include "io/safetensors.h"
#include "support.h"

namespace tilewise::io {
namespace {

// The reading end of a pipe into which a thread writes the bytes, `step` at a time.
class Pipe {
 public:
  Pipe(std::string bytes, std::size_t step) {
    if (::pipe(ends_) != 0) throw std::runtime_error("no pipe");
    writer_ = std::thread([this, bytes = std::move(bytes), step] {
      for (std::size_t at = 0; at < bytes.size(); at += step) {
        const std::string part = bytes.substr(at, step);
        if (::write(ends_[1], part.data(), part.size()) < 0) break;
      }
      ::close(ends_[1]);
    });
  }
  ~Pipe() {
    ::close(ends_[0]);
    writer_.join();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int end() const { return ends_[0]; }

 private:
  int ends_[2];
  std::thread writer_;
};

std::string npy_of(std::int64_t size) {
  const Array array = pattern_array(ElementType::u8, {size});
  std::string bytes = npy_preamble(array);
  bytes.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return bytes;
}

TEST(Stream, ArraysOfEverySizeArriveWhole) {
  const auto edge = static_cast<std::int64_t>(kNpyBeginning) - 128;  // of what is read first
  for (const std::int64_t size :
       {std::int64_t{0}, std::int64_t{1}, edge - 1, edge, edge + 1, std::int64_t{300000}}) {
    const Pipe pipe(npy_of(size), 7001);
    const Array array = read_npy_stream(pipe.end(), "standard input");
    EXPECT_TRUE(same_array(array, pattern_array(ElementType::u8, {size}))) << size;
  }
}

TEST(Stream, TensorsArriveWhole) {
  TensorFile file;
  file.tensors = {{"q", pattern_array(ElementType::f32, {300, 400})},
                  {"k", pattern_array(ElementType::u8, {3})}};
  const Pipe pipe(format_safetensors(file), 4096);
  const TensorFile back = read_tensor_stream(pipe.end(), "standard input");
  for (const NamedTensor& tensor : file.tensors)
    EXPECT_TRUE(same_array(*back.find(tensor.name), tensor.array));
}

TEST(Stream, CutAndOverlongStreamsAreRefused) {
  for (const std::int64_t size : {10, 300000}) {
    const std::string whole = npy_of(size);
    for (const std::string& bytes : {whole.substr(0, whole.size() - 1), whole + "x"}) {
      const Pipe pipe(bytes, 4096);
      const std::string message =
          file_error([&] { read_npy_stream(pipe.end(), "standard input"); });
      EXPECT_NE(message.find("standard input: shape"), std::string::npos) << message;
    }
  }
}

// An end that never comes: /dev/zero as a pipe, and one after a valid header.
TEST(Stream, EndlessOnesAreRefusedOrCut) {
  expect_refused({{"zeros", "", "is not an .npy file"}}, [](const std::string& path) {
    const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    read_npy_stream(zeros, path);
  });
  expect_refused({{"zeros", "", "does not begin with {"}}, [](const std::string& path) {
    const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    read_tensor_stream(zeros, path);
  });
  expect_refused({{"zip", "PK\3\4" + std::string(1000000, 'x'), "not read from a pipe"}},
                 [](const std::string& path) {
                   const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
                   read_tensor_stream(file, path);
                 });
  expect_refused({{"terabytes",
                   npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': "
                            "(1099511627776,), }",
                            100000),
                   ""}},
                 [](const std::string& path) {
                   const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
                   read_npy_stream(file, path);
                 });
}

}  // namespace
}  // namespace tilewise::io
