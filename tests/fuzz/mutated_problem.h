// Problems made of bytes, over real small buffers, for the fuzzer of the C structs and for the
// tests. Metadata is hostile but pointers are trusted, so a problem is only run if every tensor
// stays inside its buffer. It is always planned.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "problem/tensors.h"

namespace tilewise::fuzz {

// Reads numbers from the input; zeros when it is used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint8_t byte() {
    if (empty()) return 0;
    --size_;
    return *data_++;
  }
  std::int64_t raw() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<std::int64_t>(value);
  }
  // Returns a small number most of the time, otherwise an edge of the integers, or anything.
  std::int64_t number() {
    static constexpr std::int64_t kEdges[] = {INT64_MIN,
                                              INT64_MAX,
                                              INT32_MAX,
                                              INT32_MIN,
                                              -1,
                                              -2,
                                              0,
                                              1,
                                              2,
                                              3,
                                              4,
                                              5,
                                              8,
                                              16,
                                              std::int64_t{1} << 31,
                                              std::int64_t{1} << 32,
                                              std::int64_t{1} << 60};
    const std::uint8_t choice = byte();
    if (choice < 160) return choice % 12;
    if (choice < 240) return kEdges[byte() % (sizeof(kEdges) / sizeof(kEdges[0]))];
    return raw();
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

inline constexpr std::size_t kBufferBytes = 8192;
inline constexpr std::int64_t kMostWork = 200000;

class MutatedProblem {
 public:
  MutatedProblem(const std::uint8_t* data, std::size_t size) {
    Bytes bytes(data, size);
    start(bytes);
    while (!bytes.empty()) mutate(bytes);
  }
  ~MutatedProblem() {
    for (void* const buffer : buffers_) std::free(buffer);
  }
  MutatedProblem(const MutatedProblem&) = delete;
  MutatedProblem& operator=(const MutatedProblem&) = delete;

  // Plans with every kernel and, where memory allows, runs. Aborts if a promise of the interface is
  // broken.
  void run() const {
    for (const std::int32_t operation : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
      for (std::int32_t i = 0; i < tilewise_kernel_count(operation); ++i) {
        const tilewise_status status =
            tilewise_kernel_supports(operation, tilewise_kernel_name(operation, i), &problem_);
        demand_message(status);
      }
      if (!stays_inside()) continue;
      demand_message(operation == TILEWISE_FORWARD ? tilewise_forward(&problem_, nullptr)
                                                   : tilewise_backward(&problem_, nullptr));
    }
  }

  // True if the problem is one that run() also executes.
  bool stays_inside() const {
    for (const problem::NamedTensor& named : problem::kTensors) {
      const tilewise_tensor& tensor = problem_.*named.member;
      // These are refused without being read.
      if (tensor.rank < 0 || tensor.rank > TILEWISE_MAX_RANK) continue;
      if (tensor.data == nullptr) continue;
      __int128 low = 0;
      __int128 high = 0;
      for (int d = 0; d < tensor.rank; ++d) {
        if (tensor.shape[d] > 64) return false;
        if (tensor.shape[d] <= 1) continue;
        const __int128 reach = static_cast<__int128>(tensor.shape[d] - 1) * tensor.strides[d];
        (reach < 0 ? low : high) += reach * 8;
      }
      if (low < 0 || high + 8 > static_cast<__int128>(kBufferBytes)) return false;
    }
    double work = 1;  // extents of a refused tensor may be any numbers
    for (const auto member : {&tilewise_problem::q, &tilewise_problem::k}) {
      for (int d = 0; d < 4; ++d) {
        const std::int64_t extent = (problem_.*member).shape[d];
        work *= extent > 1 ? static_cast<double>(extent) : 1;
      }
    }
    return work <= static_cast<double>(kMostWork);
  }

 private:
  // Requires that a status other than OK comes with one line.
  static void demand_message(tilewise_status status) {
    const char* const message = tilewise_last_error();
    const bool has_line = message[0] != '\0' && std::strchr(message, '\n') == nullptr;
    if (status < TILEWISE_OK || status > TILEWISE_INTERNAL_ERROR) std::abort();
    if (status == TILEWISE_INTERNAL_ERROR || (status != TILEWISE_OK && !has_line)) std::abort();
  }

  tilewise_tensor tensor(std::int32_t dtype, const std::vector<std::int64_t>& shape) {
    void* const buffer = std::calloc(1, kBufferBytes);
    if (buffer == nullptr) std::abort();
    buffers_.push_back(buffer);
    return tilewise_contiguous(buffer, dtype, static_cast<std::int32_t>(shape.size()),
                               shape.data());
  }

  void start(Bytes& bytes) {
    tilewise_problem_init(&problem_);
    const std::uint8_t kind = bytes.byte();
    const std::int32_t dtype = 1 + kind % 4;
    const std::int32_t statistics = dtype == TILEWISE_FP64 ? TILEWISE_FP64 : TILEWISE_FP32;
    const bool packed = kind & 4;
    const auto rows = [&](std::int64_t count, std::int64_t heads, std::int64_t width) {
      return packed ? tensor(dtype, {2 * count, heads, width})
                    : tensor(dtype, {2, count, heads, width});
    };
    const std::vector<std::int64_t> lse_shape =
        packed ? std::vector<std::int64_t>{4, 6} : std::vector<std::int64_t>{2, 4, 3};
    problem_.q = rows(3, 4, 4);
    problem_.k = rows(5, 2, 4);
    problem_.v = rows(5, 2, 3);
    problem_.out = rows(3, 4, 3);
    problem_.dout = rows(3, 4, 3);
    problem_.dq = rows(3, 4, 4);
    problem_.dk = rows(5, 2, 4);
    problem_.dv = rows(5, 2, 3);
    problem_.lse = tensor(statistics, lse_shape);
    if (kind & 8) problem_.dlse = tensor(statistics, lse_shape);
    if (kind & 16) {
      problem_.bias = tensor(dtype, {1, 4, packed ? 6 : 3, packed ? 10 : 5});
      problem_.dbias = tensor(dtype, {1, 4, packed ? 6 : 3, packed ? 10 : 5});
    }
    if (kind & 32) problem_.mask = tensor(TILEWISE_BOOL, {packed ? 6 : 3, packed ? 10 : 5});
    if (kind & 64) {
      problem_.sink = tensor(TILEWISE_FP32, {4});
      problem_.dsink = tensor(TILEWISE_FP32, {4});
      problem_.alibi_slopes = tensor(TILEWISE_FP32, {4});
    }
    if (kind & 128) {
      problem_.seqused_q = tensor(TILEWISE_INT32, {2});
      problem_.seqused_k = tensor(TILEWISE_INT64, {2});
    }
    problem_.page_table = tensor(TILEWISE_INT32, {2, 1});
    problem_.page_table.rank = 0;  // one mutation makes k and v pages
    if (packed) {
      problem_.cu_seqlens_q = tensor(TILEWISE_INT64, {3});
      problem_.cu_seqlens_k = tensor(TILEWISE_INT32, {3});
    }
  }

  void mutate(Bytes& bytes) {
    const std::uint8_t choice = bytes.byte();
    if (choice < 128) {
      mutate_tensor(bytes);
    } else if (choice < 192) {
      mutate_option(bytes);
    } else if (choice < 240) {
      mutate_contents(bytes);
    } else {
      problem_.struct_size = static_cast<std::size_t>(bytes.number());
      // A larger size would claim bytes that do not exist: the fault of the caller, not of the
      // library.
      if (problem_.struct_size > sizeof(problem_)) problem_.struct_size = sizeof(problem_);
    }
  }

  tilewise_tensor& any_tensor(Bytes& bytes) {
    constexpr std::size_t kCount = sizeof(problem::kTensors) / sizeof(problem::kTensors[0]);
    return problem_.*problem::kTensors[bytes.byte() % kCount].member;
  }

  void mutate_tensor(Bytes& bytes) {
    tilewise_tensor& target = any_tensor(bytes);
    const int d = bytes.byte() % TILEWISE_MAX_RANK;
    switch (bytes.byte() % 9) {
      case 0:
        target.rank = static_cast<std::int32_t>(bytes.number());
        break;
      case 1:
        target.dtype = static_cast<std::int32_t>(bytes.number());
        break;
      case 2:
        target.device = static_cast<std::int32_t>(bytes.number());
        break;
      case 3:
        target.device_index = static_cast<std::int32_t>(bytes.number());
        break;
      case 4:
        target.data = bytes.byte() % 4 == 0 ? nullptr : any_tensor(bytes).data;
        break;
      case 5:
        target = any_tensor(bytes);
        break;
      case 6:
        target.shape[d] = bytes.number();
        break;
      case 7:
        target.strides[d] = bytes.number();
        break;
      default:
        target = tensor(1 + bytes.byte() % 7, {bytes.byte() % 7, bytes.byte() % 7});
        break;
    }
  }

  void mutate_option(Bytes& bytes) {
    double real;
    const std::int64_t pattern = bytes.raw();
    std::memcpy(&real, &pattern, sizeof(real));
    switch (bytes.byte() % 15) {
      case 0:
        problem_.layout = static_cast<std::int32_t>(bytes.number());
        break;
      case 1:
        problem_.causal = static_cast<std::int32_t>(bytes.number());
        break;
      case 2:
        problem_.alignment = static_cast<std::int32_t>(bytes.number());
        break;
      case 3:
        problem_.deterministic = static_cast<std::int32_t>(bytes.number());
        break;
      case 4:
        problem_.batch_invariant = static_cast<std::int32_t>(bytes.number());
        break;
      case 5:
        problem_.reserved = static_cast<std::int32_t>(bytes.number());
        break;
      case 6:
        problem_.window_left = bytes.number();
        break;
      case 7:
        problem_.window_right = bytes.number();
        break;
      case 8:
        problem_.softmax_scale = real;
        break;
      case 9:
        problem_.softcap = real;
        break;
      case 10:
        problem_.dropout_p = real;
        break;
      case 11:
        problem_.dropout_offset = static_cast<std::uint64_t>(pattern);
        break;
      case 12:
        problem_.max_seqlen_q = bytes.number();
        break;
      case 13:
        problem_.accumulate = bytes.byte() % 4 == 0 ? static_cast<std::int32_t>(bytes.number()) : 1;
        break;
      default:
        problem_.max_seqlen_k = bytes.number();
        break;
    }
  }

  // Changes numbers in a buffer: lengths, slices, values.
  void mutate_contents(Bytes& bytes) {
    const std::uint8_t choice = bytes.byte() % 8;
    if (choice < 2) problem_.slices = tensor(TILEWISE_INT64, {1 + bytes.byte() % 3, 6});
    if (choice == 2) problem_.parts = tensor(TILEWISE_INT64, {2, 4});
    if (choice == 3) problem_.phi = tensor(TILEWISE_FP32, {1});
    void* const data = any_tensor(bytes).data;
    if (data == nullptr) return;
    for (int count = bytes.byte() % 20, i = 0; i < count; ++i) {
      const std::int64_t number = bytes.number();
      std::memcpy(static_cast<char*>(data) + i * 8, &number, sizeof(number));
    }
  }

  tilewise_problem problem_;
  std::vector<void*> buffers_;
};

}  // namespace tilewise::fuzz
