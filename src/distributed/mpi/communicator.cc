// The MPI engine of communicators.
#include <tilewise/tilewise_mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "distributed/mpi/roll_call.h"

namespace tilewise::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostBytes = std::int64_t{1}
                                    << 30;  // of a message of MPI, which counts in int
constexpr double kGraceSeconds = 1;  // for the answers of a roll call, and for cancelled messages

// A message of MPI: a piece of at most kMostBytes.
struct Part {
  std::int32_t peer;
  int bytes;
  bool receive;
  bool done;
};

class Communicator {
 public:
  Communicator(MPI_Comm comm, std::int32_t rank, std::int32_t size)
      : comm_(comm), rank_(rank), roll_call_(comm, rank, size) {}

  tilewise_status exchange(const tilewise_exchange& request, std::int32_t* failed_rank);
  void abort() {
    if (failed_rank_ < 0) fail_all(rank_);
  }
  bool failed() const { return failed_rank_ >= 0; }
  MPI_Comm* comm() { return &comm_; }

 private:
  bool post(const tilewise_message& message, bool receive);
  bool test();
  void wait(double timeout_seconds);
  void cancel();
  std::vector<std::int32_t> awaited() const;
  void fail_all(std::int32_t rank);
  tilewise_status failure(std::int32_t* failed_rank, bool own_limit) const;

  MPI_Comm comm_;
  std::int32_t rank_;
  RollCall roll_call_;
  std::int32_t failed_rank_ = -1;
  bool timed_out_ = false;  // this rank has found that out
  bool wrong_size_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;  // of the requests
};

bool Communicator::post(const tilewise_message& message, bool receive) {
  std::int64_t sent = 0;
  do {
    const int bytes = static_cast<int>(std::min(message.bytes - sent, kMostBytes));
    char* const data = static_cast<char*>(message.data) + sent;
    requests_.push_back(MPI_REQUEST_NULL);
    parts_.push_back({message.peer, bytes, receive, false});
    const int error =
        receive
            ? MPI_Irecv(data, bytes, MPI_BYTE, message.peer, message.tag, comm_, &requests_.back())
            : MPI_Isend(data, bytes, MPI_BYTE, message.peer, message.tag, comm_, &requests_.back());
    if (error != MPI_SUCCESS) return false;
    sent += bytes;
  } while (sent < message.bytes);
  return true;
}

// Returns true if every message has arrived; sets failed_rank_ if one of them has another size, or
// cannot arrive.
bool Communicator::test() {
  bool all = true;
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    Part& part = parts_[r];
    if (part.done) continue;
    int done = 0;
    MPI_Status status;
    const int error = MPI_Test(&requests_[r], &done, &status);
    int bytes = part.bytes;
    if (error == MPI_SUCCESS && done && part.receive) MPI_Get_count(&status, MPI_BYTE, &bytes);
    int error_class = MPI_SUCCESS;
    if (error != MPI_SUCCESS) MPI_Error_class(error, &error_class);
    if (error != MPI_SUCCESS || bytes != part.bytes) {
      wrong_size_ = error == MPI_SUCCESS || error_class == MPI_ERR_TRUNCATE;
      part.done = true;
      fail_all(part.peer);
      return false;
    }
    part.done = done != 0;
    all = all && part.done;
  }
  return all;
}

std::vector<std::int32_t> Communicator::awaited() const {
  std::vector<std::int32_t> peers;
  for (const bool receive : {true, false}) {
    for (const Part& part : parts_) {
      if (!part.done && part.receive == receive &&
          std::find(peers.begin(), peers.end(), part.peer) == peers.end())
        peers.push_back(part.peer);
    }
  }
  return peers;
}

void Communicator::wait(double timeout_seconds) {
  const auto start = Clock::now();
  for (std::int64_t round = 0; !test() && failed_rank_ < 0; ++round) {
    if (round % 16 == 0) {
      const std::int32_t failed = roll_call_.answer(awaited());
      if (failed >= 0) failed_rank_ = failed;
    }
    if (std::chrono::duration<double>(Clock::now() - start).count() > timeout_seconds) {
      timed_out_ = true;
      fail_all(roll_call_.silent_rank(awaited(), kGraceSeconds));
    }
    pause(round);
  }
}

void Communicator::fail_all(std::int32_t rank) {
  if (failed_rank_ >= 0) return;
  failed_rank_ = rank;
  roll_call_.report(rank);
}

// Ends the messages that have not arrived. Receives can be cancelled, unless they are arriving;
// sends are left to MPI.
void Communicator::cancel() {
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    if (!parts_[r].done && requests_[r] != MPI_REQUEST_NULL && parts_[r].receive)
      MPI_Cancel(&requests_[r]);
  }
  const auto start = Clock::now();
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    int done = parts_[r].done || requests_[r] == MPI_REQUEST_NULL;
    for (std::int64_t round = 0; !done; ++round) {
      MPI_Test(&requests_[r], &done, MPI_STATUS_IGNORE);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (!parts_[r].receive || seconds > kGraceSeconds) break;
      pause(round);
    }
    if (!done) MPI_Request_free(&requests_[r]);
  }
}

tilewise_status Communicator::failure(std::int32_t* failed_rank, bool own_limit) const {
  *failed_rank = failed_rank_;
  char message[128];
  if (wrong_size_) {
    std::snprintf(message, sizeof(message),
                  "rank %d sent a message of another size than rank %d expects", failed_rank_,
                  rank_);
    return tilewise_fail(TILEWISE_INVALID_ARGUMENT, message);
  }
  std::snprintf(message, sizeof(message), "rank %d %s", failed_rank_,
                own_limit ? "did not answer in time" : "has failed, or did not answer in time");
  return tilewise_fail(own_limit ? TILEWISE_TIMEOUT : TILEWISE_REMOTE_ERROR, message);
}

tilewise_status Communicator::exchange(const tilewise_exchange& request,
                                       std::int32_t* failed_rank) {
  // A rank that comes late may have been given up. The first look at what has arrived makes MPI
  // fetch it, a later one finds it.
  for (int look = 0; look < 3 && !failed(); ++look) failed_rank_ = roll_call_.answer({});
  if (failed()) return failure(failed_rank, false);
  requests_.clear();
  parts_.clear();
  const auto post_all = [&](const tilewise_message* messages, std::int32_t count, bool receive) {
    for (std::int32_t m = 0; m < count && failed_rank_ < 0; ++m) {
      if (!post(messages[m], receive)) fail_all(messages[m].peer);
    }
  };
  post_all(request.receives, request.receive_count, true);
  post_all(request.sends, request.send_count, false);
  timed_out_ = false;
  if (!failed()) wait(request.timeout_seconds);
  if (!failed()) return TILEWISE_OK;
  cancel();
  return failure(failed_rank, timed_out_);
}

tilewise_status check_request(const tilewise_exchange& request, std::int32_t size) {
  if (!(request.timeout_seconds > 0))
    return tilewise_fail(TILEWISE_INVALID_ARGUMENT, "timeout_seconds: must be > 0");
  const auto valid = [&](const tilewise_message* messages, std::int32_t count) {
    return std::all_of(messages, messages + count, [&](const tilewise_message& message) {
      return message.peer >= 0 && message.peer < size && message.bytes >= 0 && message.tag >= 0 &&
             message.tag < kControlTag;
    });
  };
  if (valid(request.sends, request.send_count) && valid(request.receives, request.receive_count))
    return TILEWISE_OK;
  return tilewise_fail(TILEWISE_INVALID_ARGUMENT,
                       "a message has a peer that is no rank, a tag that is not 0 to 32766, or a "
                       "negative size");
}

tilewise_status checked_exchange(void* self, const tilewise_exchange* request,
                                 std::int32_t* failed_rank) {
  Communicator* const communicator = static_cast<Communicator*>(self);
  int size = 0;
  MPI_Comm_rank(*communicator->comm(), failed_rank);
  MPI_Comm_size(*communicator->comm(), &size);
  try {
    const tilewise_status status = check_request(*request, size);
    return status == TILEWISE_OK ? communicator->exchange(*request, failed_rank) : status;
  } catch (const std::bad_alloc&) {
    return tilewise_fail(TILEWISE_NO_MEMORY, "no memory for an exchange");
  }
}

void checked_abort(void* self) {
  try {
    static_cast<Communicator*>(self)->abort();
  } catch (const std::bad_alloc&) {  // the others reach their time limits
  }
}

}  // namespace
}  // namespace tilewise::mpi

using tilewise::mpi::Communicator;

tilewise_status tilewise_mpi_communicator_create(MPI_Comm comm,
                                                 tilewise_communicator* communicator) {
  if (communicator == nullptr)
    return tilewise_fail(TILEWISE_INVALID_ARGUMENT, "communicator: is NULL");
  int initialized = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (!initialized) return tilewise_fail(TILEWISE_INVALID_ARGUMENT, "comm: MPI is not initialised");
  MPI_Query_thread(&level);
  MPI_Comm own = MPI_COMM_NULL;
  if (comm == MPI_COMM_NULL || MPI_Comm_dup(comm, &own) != MPI_SUCCESS)
    return tilewise_fail(TILEWISE_INVALID_ARGUMENT, "comm: cannot be duplicated");
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  *communicator = {};
  communicator->struct_size = sizeof(*communicator);
  MPI_Comm_rank(own, &communicator->rank);
  MPI_Comm_size(own, &communicator->size);
  communicator->calls_from_any_thread = level >= MPI_THREAD_SERIALIZED ? 1 : 0;
  communicator->reads_after_failure = 1;
  communicator->exchange = tilewise::mpi::checked_exchange;
  communicator->abort = tilewise::mpi::checked_abort;
  communicator->self = new (std::nothrow) Communicator(own, communicator->rank, communicator->size);
  if (communicator->self != nullptr) return TILEWISE_OK;
  MPI_Comm_free(&own);
  return tilewise_fail(TILEWISE_NO_MEMORY, "no memory for a communicator");
}

tilewise_status tilewise_mpi_communicator_destroy(tilewise_communicator* communicator) {
  if (communicator == nullptr || communicator->self == nullptr) return TILEWISE_OK;
  const std::unique_ptr<Communicator> own(static_cast<Communicator*>(communicator->self));
  if (!own->failed()) MPI_Comm_free(own->comm());
  *communicator = {};
  return TILEWISE_OK;
}
