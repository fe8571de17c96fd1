#include "distributed/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "distributed/communicator.h"
#include "problem/arena.h"

namespace tilewise::distributed {
namespace {

using problem::Arena;
using problem::fail;
using problem::IndexView;
using problem::Problem;
using problem::View;

enum class Kind { kInteger, kReal, kPresence, kContents };
struct FieldText {
  const char* name;
  Kind kind;
};
constexpr FieldText kFields[] = {{"status", Kind::kInteger},
                                 {"operation", Kind::kInteger},
                                 {"schedule", Kind::kInteger},
                                 {"q_len", Kind::kInteger},
                                 {"k_len", Kind::kInteger},
                                 {"dtype", Kind::kInteger},
                                 {"B", Kind::kInteger},
                                 {"H", Kind::kInteger},
                                 {"Hk", Kind::kInteger},
                                 {"D", Kind::kInteger},
                                 {"Dv", Kind::kInteger},
                                 {"packed q", Kind::kPresence},
                                 {"packed k", Kind::kPresence},
                                 {"window_left", Kind::kInteger},
                                 {"window_right", Kind::kInteger},
                                 {"alignment", Kind::kInteger},
                                 {"softmax_scale", Kind::kReal},
                                 {"softcap", Kind::kReal},
                                 {"dropout_p", Kind::kReal},
                                 {"dropout_seed", Kind::kInteger},
                                 {"dropout_offset", Kind::kInteger},
                                 {"bias", Kind::kPresence},
                                 {"mask", Kind::kPresence},
                                 {"dk", Kind::kPresence},
                                 {"dv", Kind::kPresence},
                                 {"dsink", Kind::kPresence},
                                 {"dalibi_slopes", Kind::kPresence},
                                 {"cu_seqlens_q", Kind::kContents},
                                 {"cu_seqlens_k", Kind::kContents},
                                 {"seqused_q", Kind::kContents},
                                 {"seqused_k", Kind::kContents},
                                 {"alibi_slopes", Kind::kContents},
                                 {"sink", Kind::kContents},
                                 {"the plan", Kind::kContents}};
static_assert(std::size(kFields) == static_cast<std::size_t>(Field::kCount),
              "Every field has a name.");

// The hashes below are 0 for absent tensors.
std::uint64_t hash_list(const IndexView& list) {
  if (!list.present()) return 0;
  Hash hash;
  for (std::int64_t i = 0; i < list.count; ++i) hash.add(static_cast<std::uint64_t>(list.at(i)));
  return hash.value();
}

// Hashes the fp32 numbers of slopes (B, H) or (H), or of sinks (H).
std::uint64_t hash_heads(const View& view, std::int64_t batch, std::int64_t heads) {
  if (!view.present()) return 0;
  Hash hash;
  for (std::int64_t b = 0; b < (view.batch != 0 ? batch : 1); ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::uint32_t bits;
      std::memcpy(&bits, static_cast<const float*>(view.data) + view.offset(b, h, 0), sizeof(bits));
      hash.add(bits);
    }
  }
  return hash.value();
}

struct ValueText {
  char text[40];
};
ValueText value_text(Kind kind, std::uint64_t value) {
  ValueText text;
  switch (kind) {
    case Kind::kInteger:
      std::snprintf(text.text, sizeof(text.text), "%lld",
                    static_cast<long long>(static_cast<std::int64_t>(value)));
      break;
    case Kind::kReal:
      std::snprintf(text.text, sizeof(text.text), "%g", std::bit_cast<double>(value));
      break;
    case Kind::kPresence:
    case Kind::kContents:
      std::snprintf(text.text, sizeof(text.text), "%s", value != 0 ? "given" : "absent");
      break;
  }
  return text;
}

// Returns the rank whose fingerprint most ranks have, the lowest one if there are several.
std::int32_t rank_of_majority(const Fingerprint* all, std::int32_t size) {
  std::int32_t best = 0;
  std::int32_t most = 0;
  for (std::int32_t rank = 0; rank < size && most <= size / 2; ++rank) {
    const auto count =
        static_cast<std::int32_t>(std::count_if(all, all + size, [&](const Fingerprint& other) {
          return other.values == all[rank].values;
        }));
    if (count > most) {
      most = count;
      best = rank;
    }
  }
  return best;
}

Status verdict(const Fingerprint* all, const tilewise_communicator& communicator) {
  for (std::int32_t rank = 0; rank < communicator.size; ++rank) {
    const Status status = static_cast<Status>(all[rank][Field::kStatus]);
    if (status == TILEWISE_OK) continue;
    return fail(TILEWISE_INVALID_ARGUMENT, "rank %d has refused its problem: %s", rank,
                tilewise_status_name(status));
  }
  const std::int32_t reference = rank_of_majority(all, communicator.size);
  for (std::int32_t rank = 0; rank < communicator.size; ++rank) {
    for (std::size_t f = 0; f < std::size(kFields); ++f) {
      const std::uint64_t theirs = all[rank].values[f];
      const std::uint64_t usual = all[reference].values[f];
      if (theirs == usual) continue;
      if (kFields[f].kind == Kind::kContents && theirs != 0 && usual != 0) {
        return fail(
            TILEWISE_INVALID_ARGUMENT,
            "rank %d passes another problem: the contents of %s differ from those on rank %d", rank,
            kFields[f].name, reference);
      }
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "rank %d passes another problem: %s is %s, on rank %d %s", rank, kFields[f].name,
                  value_text(kFields[f].kind, theirs).text, reference,
                  value_text(kFields[f].kind, usual).text);
    }
  }
  return TILEWISE_OK;
}

// Contents in device memory are not read: only their presence has to be equal.
void set_contents(const Problem& local, Fingerprint* print) {
  if (local.device != TILEWISE_CPU) {
    (*print)[Field::kAlibiSlopes] = local.alibi_slopes.present();
    (*print)[Field::kSink] = local.sink.present();
    return;
  }
  set_lists(local, print);
  (*print)[Field::kAlibiSlopes] = hash_heads(local.alibi_slopes, local.batch, local.heads);
  (*print)[Field::kSink] = hash_heads(local.sink, local.batch, local.heads);
}

}  // namespace

Fingerprint fingerprint_of(const Problem& local, Schedule schedule, Lengths lengths) {
  Fingerprint print;
  const auto set = [&](Field field, auto value) {
    print[field] = static_cast<std::uint64_t>(value);
  };
  const auto set_real = [&](Field field, double value) {
    print[field] = std::bit_cast<std::uint64_t>(value);
  };
  set(Field::kOperation, local.operation);
  set(Field::kSchedule, schedule);
  set(Field::kQLen, lengths.q);
  set(Field::kKLen, lengths.k);
  set(Field::kDtype, local.dtype);
  set(Field::kBatch, local.batch);
  set(Field::kHeads, local.heads);
  set(Field::kKvHeads, local.kv_heads);
  set(Field::kHeadDim, local.head_dim);
  set(Field::kValueDim, local.value_dim);
  set(Field::kQPacked, local.q_packed);
  set(Field::kKPacked, local.k_packed);
  set(Field::kWindowLeft, local.window_left);
  set(Field::kWindowRight, local.window_right);
  set(Field::kTopLeft, local.top_left);
  set_real(Field::kScale, local.scale);
  set_real(Field::kSoftcap, local.softcap);
  set_real(Field::kDropoutP, local.dropout_p);
  set(Field::kDropoutSeed, local.dropout_seed);
  set(Field::kDropoutOffset, local.dropout_offset);
  set(Field::kBias, local.bias.present());
  set(Field::kMask, local.mask.present());
  set(Field::kDK, local.dk.present());
  set(Field::kDV, local.dv.present());
  set(Field::kDSink, local.dsink.present());
  set(Field::kDAlibiSlopes, local.dalibi_slopes.present());
  set_contents(local, &print);
  return print;
}

void set_lists(const Problem& problem, Fingerprint* print) {
  (*print)[Field::kCuSeqlensQ] = hash_list(problem.cu_seqlens_q);
  (*print)[Field::kCuSeqlensK] = hash_list(problem.cu_seqlens_k);
  (*print)[Field::kSeqUsedQ] = hash_list(problem.seqused_q);
  (*print)[Field::kSeqUsedK] = hash_list(problem.seqused_k);
}

std::uint64_t hash_of_lists(const Problem& local) {
  Hash hash;
  for (const IndexView* list :
       {&local.cu_seqlens_q, &local.cu_seqlens_k, &local.seqused_q, &local.seqused_k})
    hash.add(hash_list(*list));
  return hash.value();
}

namespace {

struct Scratch {
  Fingerprint* all;            // (size)
  tilewise_message* sends;     // (size - 1)
  tilewise_message* receives;  // (size - 1)
};
Scratch take_scratch(Arena& arena, std::int32_t size) {
  return {arena.take<Fingerprint>(size), arena.take<tilewise_message>(size),
          arena.take<tilewise_message>(size)};
}

}  // namespace

std::int64_t comparison_bytes(std::int32_t size) {
  Arena arena;
  take_scratch(arena, size);
  return arena.bytes();
}

Status compare_problems(const tilewise_communicator& communicator, const Fingerprint& own,
                        double timeout_seconds, void* scratch) {
  Arena arena(scratch);
  const Scratch memory = take_scratch(arena, communicator.size);
  memory.all[communicator.rank] = own;
  std::int32_t count = 0;
  for (std::int32_t peer = 0; peer < communicator.size; ++peer) {
    if (peer == communicator.rank) continue;
    constexpr std::int64_t kBytes = sizeof(Fingerprint);
    memory.sends[count] = {&memory.all[communicator.rank], kBytes, peer, 0};
    memory.receives[count++] = {&memory.all[peer], kBytes, peer, 0};
  }
  const tilewise_exchange request = {memory.sends, memory.receives, count, count, timeout_seconds};
  const Status own_status = static_cast<Status>(own[Field::kStatus]);
  char own_message[512];
  std::snprintf(own_message, sizeof(own_message), "%s", problem::message());
  const Status status = exchange(communicator, request, "comparison of the ranks' problems");
  if (own_status != TILEWISE_OK) return fail(own_status, "%s", own_message);
  return status == TILEWISE_OK ? verdict(memory.all, communicator) : status;
}

}  // namespace tilewise::distributed
