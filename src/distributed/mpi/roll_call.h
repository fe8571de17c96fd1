// Control messages between the ranks of an MPI communicator: which rank waits for which, and that a
// rank has failed. Ranks look for them while they wait in an exchange.
#pragma once

#include <tilewise/tilewise_mpi.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace tilewise::mpi {

inline constexpr int kControlTag = 32767;  // the largest tag that every MPI has

class RollCall {
 public:
  RollCall(MPI_Comm comm, std::int32_t rank, std::int32_t size)
      : comm_(comm), rank_(rank), size_(size) {}

  // Reads the control messages that have arrived, and answers questions: this rank waits for
  // `awaited`. Returns the rank that has failed according to the others, or -1.
  std::int32_t answer(const std::vector<std::int32_t>& awaited);

  // Sends a question to all ranks, for which ranks they wait, and collects answers for at most
  // `seconds`. Returns the rank at the end of the chain of waiting ranks: one that does not answer.
  // Returns the failed rank if others have found it.
  std::int32_t silent_rank(const std::vector<std::int32_t>& awaited, double seconds);

  // Reports to all other ranks that a rank has failed.
  void report(std::int32_t failed_rank);

 private:
  enum Kind : std::int32_t { kQuestion, kAnswer, kFailure };
  static constexpr std::size_t kMostAwaited = 13;
  struct Control {
    std::int32_t kind;
    std::int32_t rank;                   // kFailure: that has failed
    std::int32_t number;                 // of the question
    std::int32_t awaited[kMostAwaited];  // kAnswer; -1 after the last one
  };
  struct Sending {
    Control control;
    MPI_Request request;
  };

  void send(std::int32_t peer, const Control& control);
  void send_to_all(const Control& control);
  void complete_sends();
  std::int32_t culprit(const std::vector<std::int32_t>& awaited) const;

  MPI_Comm comm_;
  std::int32_t rank_;
  std::int32_t size_;
  std::int32_t question_ = 0;
  std::deque<Sending> sending_;                     // addresses stay as they are
  std::vector<std::vector<std::int32_t>> answers_;  // by rank, to the last question
  std::vector<bool> answered_;
};

// Lets other processes run; `round` counts the rounds of waiting.
void pause(std::int64_t round);

}  // namespace tilewise::mpi
