#include "verify/case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace tilewise::verify {
namespace {

constexpr const char* kStorageNames[] = {"contiguous", "padded", "transposed", "interleaved",
                                         "expanded"};

constexpr const char* kDescaleNames[] = {"absent", "tensor", "heads", "blocks"};

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", x);
  return text;
}

std::string list(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
  }
  return text + "]";
}

class Line {
 public:
  void add(const std::string& name, const std::string& value) { text_ += " " + name + "=" + value; }
  void add(const std::string& name, std::int64_t value) { add(name, std::to_string(value)); }
  void flag(const std::string& name, bool value) {
    if (value) text_ += " " + name;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_sizes(const Case& description, Line& line) {
  line.add("B", description.batch);
  line.add("Sq", description.q_len);
  line.add("Sk", description.k_len);
  line.add("H", description.heads);
  line.add("Hk", description.kv_heads);
  line.add("D", description.head_dim);
  line.add("Dv", description.value_dim);
  line.flag("layout=bhsd", description.layout == TILEWISE_BHSD);
  if (description.storage != Storage::kContiguous) {
    line.add("storage", kStorageNames[static_cast<int>(description.storage)]);
  }
  if (description.q_packed) line.add("packed_q", list(description.q_lengths));
  if (description.k_packed) line.add("packed_k", list(description.k_lengths));
  if (description.unowned > 0) line.add("unowned", description.unowned);
  line.flag("max_seqlen=unknown", !description.max_lengths_known);
  if (!description.used_q.empty()) line.add("seqused_q", list(description.used_q));
  if (!description.used.empty()) line.add("seqused_k", list(description.used));
  if (description.page_size > 0) line.add("page_size", description.page_size);
  line.flag("int64_indices", description.wide_indices);
}

std::string score_tensor(const Case& description, const ScoreTensor& tensor) {
  const auto shape = score_shape(description);
  std::vector<std::int64_t> extents;
  for (int d = 4 - tensor.rank; d < 4; ++d) {
    const std::size_t i = static_cast<std::size_t>(d);
    extents.push_back(tensor.full[i] ? shape[i] : 1);
  }
  return list(extents);
}

void add_mask(const Case& description, Line& line) {
  line.flag("causal", description.causal);
  line.flag("top-left", description.alignment == TILEWISE_TOP_LEFT);
  if (description.window_left != -1 || description.window_right != -1) {
    line.add("window", std::to_string(description.window_left) + "," +
                           std::to_string(description.window_right));
  }
  for (const Slice& slice : description.slices) {
    line.add("slice", list(std::vector<std::int64_t>(
                          slice.begin(), slice.end() - (description.slice_heads ? 0 : 1))));
  }
  if (description.mask.present) line.add("mask", score_tensor(description, description.mask));
}

void add_scores(const Case& description, Line& line) {
  if (description.bias.present) line.add("bias", score_tensor(description, description.bias));
  line.flag("bias_fp32", description.bias_fp32);
  line.flag("bias_masks", description.bias_masks);
  line.flag("alibi", description.alibi && !description.alibi_per_batch);
  line.flag("alibi_per_batch", description.alibi && description.alibi_per_batch);
  line.flag("sink", description.sink);
  line.flag("score_function", description.score_function);
  for (const double phi : description.phi) line.add("phi", number(phi));
  if (description.softcap != 0) line.add("softcap", number(description.softcap));
  if (description.dropout_p != 0) {
    line.add("dropout", number(description.dropout_p) + "," +
                            std::to_string(description.dropout_seed) + "," +
                            std::to_string(description.dropout_offset));
  }
  if (!std::isinf(description.scale)) line.add("scale", number(description.scale));
}

std::int64_t tokens(const Case& description, bool packed, const std::vector<std::int64_t>& lengths,
                    std::int64_t rows) {
  if (!packed || !description.slices.empty()) return rows;
  return std::accumulate(lengths.begin(), lengths.end(), 2 * description.unowned);
}

std::int64_t longest(const Case& description, bool packed, const std::vector<std::int64_t>& lengths,
                     std::int64_t rows) {
  if (!packed || !description.slices.empty()) return rows;
  if (!description.max_lengths_known) return tokens(description, packed, lengths, rows);
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

}  // namespace

std::string describe(const Case& description) {
  Line line;
  add_sizes(description, line);
  add_mask(description, line);
  add_scores(description, line);
  if (!description.q_cuts.empty()) line.add("q_cuts", list(description.q_cuts));
  if (!description.k_cuts.empty()) line.add("k_cuts", list(description.k_cuts));
  line.flag("no_lse", !description.lse && description.operation == Operation::kForward);
  line.flag("dlse", description.dlse);
  if (description.operation == Operation::kBackward && description.gradients != kAllGradients) {
    line.add("gradients", static_cast<std::int64_t>(description.gradients));
  }
  line.flag("deterministic", description.deterministic);
  line.flag("batch_invariant", description.batch_invariant);
  line.add("inputs", data_name(description.distribution));
  line.add("seed", std::to_string(description.seed));
  std::string head = description.operation == Operation::kForward ? "forward " : "backward ";
  head += problem::dtype_name(description.dtype);
  if (description.q_dtype != 0)
    head += std::string(" q=") + problem::dtype_name(description.q_dtype);
  if (description.descale != Descale::kAbsent)
    line.add("descale", kDescaleNames[static_cast<int>(description.descale)]);
  if (description.output_dtype != 0)
    head += std::string("->") + problem::dtype_name(description.output_dtype);
  return head + line.text();
}

std::array<std::int64_t, 4> score_shape(const Case& description) {
  return {description.batch, description.heads,
          longest(description, description.q_packed, description.q_lengths, description.q_len),
          longest(description, description.k_packed, description.k_lengths, description.k_len)};
}

std::int64_t query_tokens(const Case& description) {
  return tokens(description, description.q_packed, description.q_lengths, description.q_len);
}
std::int64_t key_tokens(const Case& description) {
  return tokens(description, description.k_packed, description.k_lengths, description.k_len);
}

std::int64_t page_count(const Case& description) {
  constexpr std::int64_t kSpare = 3;
  return description.batch * (description.k_len / description.page_size) + kSpare;
}

}  // namespace tilewise::verify
