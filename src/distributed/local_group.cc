#include "distributed/local_group.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "distributed/communicator.h"
#include "problem/tensor_checks.h"

namespace tilewise::distributed {
namespace {

using problem::fail;

constexpr std::size_t index_of(std::int32_t number) { return static_cast<std::size_t>(number); }

}  // namespace

LocalGroup::LocalGroup(std::int32_t size) : ranks_(index_of(size)) {
  for (std::int32_t rank = 0; rank < size; ++rank) {
    ranks_[index_of(rank)].group = this;
    ranks_[index_of(rank)].number = rank;
  }
}

Status LocalGroup::use_devices(std::span<const std::int32_t> devices) {
  for (Rank& rank : ranks_) {
    rank.device = std::make_unique<cuda::Exchange>(devices[index_of(rank.number)]);
    TILEWISE_RETURN_IF_ERROR(rank.device->status());
    for (std::int32_t before = 0; before < rank.number; ++before) {
      const auto other = devices.begin() + before;
      if (std::find(devices.begin(), other, *other) != other) continue;  // connected already
      TILEWISE_RETURN_IF_ERROR(cuda::connect_devices(devices[index_of(rank.number)], *other));
    }
  }
  return TILEWISE_OK;
}

tilewise_communicator LocalGroup::communicator(std::int32_t rank) {
  tilewise_communicator communicator = {};
  communicator.struct_size = sizeof(communicator);
  communicator.rank = rank;
  communicator.size = size();
  communicator.calls_from_any_thread = 1;
  communicator.self = &ranks_[index_of(rank)];
  communicator.exchange = [](void* self, const tilewise_exchange* request,
                             std::int32_t* failed_rank) {
    Rank* const caller = static_cast<Rank*>(self);
    return caller->group->exchange(caller->number, *request, failed_rank);
  };
  communicator.abort = [](void* self) {
    Rank* const caller = static_cast<Rank*>(self);
    caller->group->abort(caller->number);
  };
  if (ranks_[index_of(rank)].device == nullptr) return communicator;
  communicator.device_index = ranks_[index_of(rank)].device->device();
  communicator.start = [](void* self, const tilewise_exchange* request, void* stream,
                          std::int32_t* failed_rank) {
    Rank* const caller = static_cast<Rank*>(self);
    return caller->group->start(caller->number, *request, stream, failed_rank);
  };
  communicator.finish = [](void* self, void* stream, std::int32_t* failed_rank) {
    Rank* const caller = static_cast<Rank*>(self);
    return caller->group->finish(caller->number, stream, failed_rank);
  };
  return communicator;
}

// Finds the first open receive that takes an open send.
bool LocalGroup::pair_up(Rank& sender, std::size_t send, Rank& receiver, Pair* pair) {
  if (sender.sends[send] != Message::kOpen || receiver.request == nullptr) return false;
  const std::int32_t tag = sender.request->sends[send].tag;
  for (std::size_t r = 0; r < receiver.receives.size(); ++r) {
    const tilewise_message& message = receiver.request->receives[r];
    if (receiver.receives[r] != Message::kOpen || message.peer != sender.number ||
        message.tag != tag)
      continue;
    *pair = {&sender, &receiver, send, r};
    return true;
  }
  return false;
}

// Finds an open send of the rank that is awaited, or one to the rank. Sends of a peer are tried in
// their order, which keeps messages of one tag in order.
bool LocalGroup::find_pair(Rank& rank, Pair* pair) {
  for (std::size_t s = 0; s < rank.sends.size(); ++s) {
    if (pair_up(rank, s, ranks_[index_of(rank.request->sends[s].peer)], pair)) return true;
  }
  for (std::size_t r = 0; r < rank.receives.size(); ++r) {
    if (rank.receives[r] != Message::kOpen) continue;
    Rank& sender = ranks_[index_of(rank.request->receives[r].peer)];
    if (sender.request == nullptr) continue;
    for (std::size_t s = 0; s < sender.sends.size(); ++s) {
      if (sender.request->sends[s].peer == rank.number && pair_up(sender, s, rank, pair))
        return true;
    }
  }
  return false;
}

// Copies a message without holding the lock. Neither rank leaves its exchange meanwhile.
void LocalGroup::copy(const Pair& pair, std::unique_lock<std::mutex>& lock) {
  const tilewise_message& source = pair.sender->request->sends[pair.send];
  const tilewise_message& target = pair.receiver->request->receives[pair.receive];
  if (source.bytes != target.bytes) {
    fail_all(pair.sender->number, TILEWISE_INVALID_ARGUMENT);
    return;
  }
  pair.sender->sends[pair.send] = Message::kCopying;
  pair.receiver->receives[pair.receive] = Message::kCopying;
  for (Rank* rank : {pair.sender, pair.receiver}) ++rank->copying;
  if (pair.receiver->started != nullptr) {
    // Under the lock: the receiver's events are recorded one after the other.
    if (start_copy(pair, source, target) != TILEWISE_OK)
      fail_all(pair.receiver->number, TILEWISE_DEVICE_ERROR);
  } else if (source.bytes > 0) {
    lock.unlock();
    std::memcpy(target.data, source.data, static_cast<std::size_t>(source.bytes));
    lock.lock();
  }
  pair.sender->sends[pair.send] = Message::kDone;
  pair.receiver->receives[pair.receive] = Message::kDone;
  for (Rank* rank : {pair.sender, pair.receiver}) {
    --rank->copying;
    --rank->open;
    rank->changed.notify_one();
  }
}

// Copies on the receiver's stream, after the work that both ranks' streams had when the exchange
// was started.
Status LocalGroup::start_copy(const Pair& pair, const tilewise_message& source,
                              const tilewise_message& target) const {
  cuda::Exchange& receiver = *pair.receiver->device;
  const cuda::Exchange& sender = *pair.sender->device;
  TILEWISE_RETURN_IF_ERROR(receiver.follow(sender));
  TILEWISE_RETURN_IF_ERROR(cuda::copy_between(receiver.device(), target.data, sender.device(),
                                              source.data, source.bytes, receiver.stream()));
  return receiver.end();
}

void LocalGroup::wait(Rank& rank, double timeout_seconds, std::unique_lock<std::mutex>& lock) {
  const auto ended = [&] { return rank.open == 0 || failed_rank_ >= 0; };
  constexpr double kLongest = 1e8;  // three years; a time point could not hold much more
  if (timeout_seconds >= kLongest) {
    rank.changed.wait(lock, ended);
    return;
  }
  const auto limit = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(timeout_seconds));
  rank.changed.wait_until(lock, std::chrono::steady_clock::now() + limit, ended);
}

// Returns the rank at the end of the chain of waiting ranks: one that is in no exchange, among
// those that `waiting` waits for, those that these wait for, and so on. If all of them are in an
// exchange, they wait for each other's messages, and the first is as good as any.
std::int32_t LocalGroup::silent_rank(const Rank& waiting) const {
  std::vector<std::int32_t> reached = {waiting.number};
  std::vector<bool> known(ranks_.size(), false);
  known[index_of(waiting.number)] = true;
  for (std::size_t next = 0; next < reached.size(); ++next) {
    const Rank& rank = ranks_[index_of(reached[next])];
    if (rank.request == nullptr) return rank.number;
    const auto add = [&](const tilewise_message* messages, const std::vector<Message>& states) {
      for (std::size_t m = 0; m < states.size(); ++m) {
        const std::int32_t peer = messages[m].peer;
        if (states[m] == Message::kDone || known[index_of(peer)]) continue;
        known[index_of(peer)] = true;
        reached.push_back(peer);
      }
    };
    add(rank.request->receives, rank.receives);
    add(rank.request->sends, rank.sends);
  }
  return reached.size() > 1 ? reached[1] : waiting.number;
}

void LocalGroup::fail_all(std::int32_t failed_rank, Status reason) {
  if (failed_rank_ >= 0) return;
  failed_rank_ = failed_rank;
  failure_ = reason;
  for (Rank& rank : ranks_) rank.changed.notify_one();
}

Status LocalGroup::failure(const Rank& rank, bool timed_out, std::int32_t* failed_rank) const {
  *failed_rank = failed_rank_;
  switch (failure_) {
    case TILEWISE_TIMEOUT:
      return fail(timed_out ? TILEWISE_TIMEOUT : TILEWISE_REMOTE_ERROR,
                  "rank %d did not answer in time", failed_rank_);
    case TILEWISE_INVALID_ARGUMENT:
      return fail(TILEWISE_INVALID_ARGUMENT,
                  "rank %d sent a message of another size than its receiver expects", failed_rank_);
    case TILEWISE_DEVICE_ERROR:
      return fail(TILEWISE_DEVICE_ERROR, "a copy to rank %d could not be started", failed_rank_);
    default:
      return fail(TILEWISE_REMOTE_ERROR, "rank %d has failed%s", failed_rank_,
                  failed_rank_ == rank.number ? " (this one)" : "");
  }
}

Status LocalGroup::exchange(std::int32_t number, const tilewise_exchange& request,
                            std::int32_t* failed_rank) {
  *failed_rank = number;
  TILEWISE_RETURN_IF_ERROR(check_messages(request, size()));
  Rank& rank = ranks_[index_of(number)];
  std::unique_lock<std::mutex> lock(mutex_);
  if (failed_rank_ >= 0) return failure(rank, false, failed_rank);
  try {
    rank.sends.assign(index_of(request.send_count), Message::kOpen);
    rank.receives.assign(index_of(request.receive_count), Message::kOpen);
  } catch (const std::bad_alloc&) {
    return fail(TILEWISE_NO_MEMORY, "no memory for %d messages",
                request.send_count + request.receive_count);
  }
  rank.request = &request;
  rank.open = std::int64_t{request.send_count} + request.receive_count;
  Pair pair;
  while (failed_rank_ < 0 && find_pair(rank, &pair)) copy(pair, lock);
  wait(rank, request.timeout_seconds, lock);
  const bool timed_out = rank.open > 0 && failed_rank_ < 0;
  try {
    if (timed_out) fail_all(silent_rank(rank), TILEWISE_TIMEOUT);
  } catch (const std::bad_alloc&) {
    fail_all(number, TILEWISE_TIMEOUT);
  }
  rank.changed.wait(lock, [&] { return rank.copying == 0; });
  rank.request = nullptr;
  return rank.open == 0 ? Status{TILEWISE_OK} : failure(rank, timed_out, failed_rank);
}

Status LocalGroup::start(std::int32_t number, const tilewise_exchange& request, void* stream,
                         std::int32_t* failed_rank) {
  *failed_rank = number;
  Rank& rank = ranks_[index_of(number)];
  TILEWISE_RETURN_IF_ERROR(rank.device->begin(stream));
  const std::lock_guard<std::mutex> lock(mutex_);
  rank.started = &request;
  return TILEWISE_OK;
}

// The later work of the stream waits for the messages that the rank receives, and for the copies of
// those that it sends. It waits even for copies that were started before a failure.
Status LocalGroup::finish(std::int32_t number, void* stream, std::int32_t* failed_rank) {
  Rank& rank = ranks_[index_of(number)];
  const tilewise_exchange& request = *rank.started;
  Status status = exchange(number, request, failed_rank);
  const std::int32_t device = rank.device->device();
  const auto wait_for = [&](const Rank& other) {
    const Status waits = other.device->wait(device, stream);
    if (status == TILEWISE_OK) status = waits;
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  rank.started = nullptr;
  if (request.receive_count > 0) wait_for(rank);
  for (std::int32_t m = 0; m < request.send_count; ++m)
    wait_for(ranks_[index_of(request.sends[m].peer)]);
  return status;
}

void LocalGroup::abort(std::int32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_all(number, TILEWISE_REMOTE_ERROR);
}

}  // namespace tilewise::distributed
