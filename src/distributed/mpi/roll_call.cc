#include "distributed/mpi/roll_call.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tilewise::mpi {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t index_of(std::int32_t rank) { return static_cast<std::size_t>(rank); }

}  // namespace

void pause(std::int64_t round) {
  if (round < 100) return;
  if (round < 1000) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void RollCall::send(std::int32_t peer, const Control& control) {
  sending_.push_back({control, MPI_REQUEST_NULL});
  Sending& message = sending_.back();
  MPI_Isend(&message.control, sizeof(Control), MPI_BYTE, peer, kControlTag, comm_,
            &message.request);
}

void RollCall::send_to_all(const Control& control) {
  for (std::int32_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) send(peer, control);
  }
}

void RollCall::complete_sends() {
  while (!sending_.empty()) {
    int done = 0;
    MPI_Test(&sending_.front().request, &done, MPI_STATUS_IGNORE);
    if (!done) return;
    sending_.pop_front();
  }
}

std::int32_t RollCall::answer(const std::vector<std::int32_t>& awaited) {
  std::int32_t failed = -1;
  while (failed < 0) {
    int arrived = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kControlTag, comm_, &arrived, &status);
    if (!arrived) break;
    Control control;
    MPI_Recv(&control, sizeof(Control), MPI_BYTE, status.MPI_SOURCE, kControlTag, comm_,
             MPI_STATUS_IGNORE);
    if (control.kind == kFailure) failed = control.rank;
    if (control.kind == kQuestion) {
      control.kind = kAnswer;
      for (std::size_t a = 0; a < kMostAwaited; ++a)
        control.awaited[a] = a < awaited.size() ? awaited[a] : -1;
      send(status.MPI_SOURCE, control);
    } else if (control.kind == kAnswer && control.number == question_) {
      std::vector<std::int32_t>& answer = answers_[index_of(status.MPI_SOURCE)];
      answer.assign(control.awaited,
                    std::find(control.awaited, control.awaited + kMostAwaited, -1));
      answered_[index_of(status.MPI_SOURCE)] = true;
    }
  }
  complete_sends();
  return failed;
}

// Follows the chain from the ranks that this rank waits for to those that they wait for, and so on.
std::int32_t RollCall::culprit(const std::vector<std::int32_t>& awaited) const {
  std::vector<std::int32_t> reached = awaited;
  for (std::size_t next = 0; next < reached.size(); ++next) {
    const std::int32_t rank = reached[next];
    if (rank == rank_) continue;
    if (!answered_[index_of(rank)]) return rank;
    for (const std::int32_t further : answers_[index_of(rank)]) {
      if (std::find(reached.begin(), reached.end(), further) == reached.end())
        reached.push_back(further);
    }
  }
  return awaited.empty() ? rank_ : awaited.front();
}

std::int32_t RollCall::silent_rank(const std::vector<std::int32_t>& awaited, double seconds) {
  ++question_;
  answers_.assign(index_of(size_), {});
  answered_.assign(index_of(size_), false);
  send_to_all({kQuestion, rank_, question_, {}});
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  for (std::int64_t round = 0; Clock::now() < end; ++round) {
    const std::int32_t failed = answer(awaited);
    if (failed >= 0) return failed;
    if (std::count(answered_.begin(), answered_.end(), true) == size_ - 1) break;
    pause(round);
  }
  return culprit(awaited);
}

void RollCall::report(std::int32_t failed_rank) {
  send_to_all({kFailure, failed_rank, 0, {}});
  // Short messages are on their way when they have been sent; some transports need a little help.
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  for (std::int64_t round = 0; !sending_.empty() && Clock::now() < end; ++round) {
    complete_sends();
    pause(round);
  }
}

}  // namespace tilewise::mpi
