// The messages of every stage of a rank.
#include "distributed/ring_plan.h"

namespace tilewise::distributed {
namespace {

enum Tag : std::int32_t { kKeysTag = 0, kPartialTag = 2, kHomeTag = 4 };  // plus the range

Buffer keys_of_step(std::int32_t step) { return step % 2 == 0 ? Buffer::kKeys0 : Buffer::kKeys1; }
Buffer gradients_of_step(std::int32_t step) {
  return step % 2 == 0 ? Buffer::kGradients0 : Buffer::kGradients1;
}

class Transfers {
 public:
  explicit Transfers(RingPlan& plan) : plan_(plan), ring_(plan.ring()), rank_(plan.rank) {}

  // The keys of `step` travel in the stage before it.
  void add_keys(std::int32_t step) {
    receive_keys(step);
    send_received_keys(step);
    send_own_keys(step);
  }

  // The gradients of `step` travel in the stage after it.
  void add_gradients(std::int32_t step) {
    send_gradients(step);
    receive_partial_sums(step);
    receive_home_sums(step);
  }

 private:
  std::int32_t after(std::int32_t rank, std::int32_t steps) const {
    return ring_.after(rank, steps);
  }

  // Returns this rank's row of a piece of its own keys.
  std::int64_t own_row(const Piece& piece) const {
    return plan_.keys.rows_before(piece.range) + piece.rows.begin;
  }

  // Returns the row of `part` in a buffer that holds `pieces`, one of which covers it.
  static std::int64_t row_in(const Pieces& pieces, const Piece& part) {
    const Piece* const whole = pieces.covering(part);
    return pieces.rows_before(whole) + part.rows.begin - whole->rows.begin;
  }

  void receive_keys(std::int32_t step) {
    const std::int32_t owner = after(rank_, -step);
    const Pieces pieces = pieces_read(ring_, rank_, owner);
    for (const Piece& piece : pieces) {
      const bool from_neighbour = comes_from_neighbour(ring_, rank_, owner, piece);
      plan_.receives.push_back({keys_of_step(step), pieces.rows_before(&piece), piece.count(), 0,
                                from_neighbour ? after(rank_, -1) : owner, kKeysTag + piece.range});
    }
  }

  // Sends those keys that this rank has received for the step before and the next rank reads.
  void send_received_keys(std::int32_t step) {
    const std::int32_t next = after(rank_, 1);
    const std::int32_t owner = after(next, -step);
    if (owner == rank_ || owner == next) return;
    const Pieces held = pieces_read(ring_, rank_, owner);
    for (const Piece& piece : pieces_read(ring_, next, owner)) {
      if (!comes_from_neighbour(ring_, next, owner, piece)) continue;
      plan_.sends.push_back({keys_of_step(step - 1), row_in(held, piece), piece.count(), 0, next,
                             kKeysTag + piece.range});
    }
  }

  void send_own_keys(std::int32_t step) {
    const std::int32_t reader = after(rank_, step);
    for (const Piece& piece : pieces_read(ring_, reader, rank_)) {
      if (comes_from_neighbour(ring_, reader, rank_, piece)) continue;
      plan_.sends.push_back(
          {Buffer::kOwnKeys, own_row(piece), piece.count(), 0, reader, kKeysTag + piece.range});
    }
  }

  void send_gradients(std::int32_t step) {
    const std::int32_t owner = after(rank_, -step);
    const Pieces pieces = pieces_read(ring_, rank_, owner);
    for (const Piece& piece : pieces) {
      const bool on = goes_to_neighbour(ring_, rank_, owner, piece);
      plan_.sends.push_back({gradients_of_step(step), pieces.rows_before(&piece), piece.count(), 0,
                             on ? after(rank_, 1) : owner,
                             (on ? kPartialTag : kHomeTag) + piece.range});
    }
  }

  // The sums of the rank before are added to those that this rank computes in the next step.
  void receive_partial_sums(std::int32_t step) {
    const std::int32_t before = after(rank_, -1);
    const std::int32_t owner = after(before, -step);
    if (owner == rank_) return;
    const Pieces own = pieces_read(ring_, rank_, owner);
    std::int64_t row = 0;
    for (const Piece& piece : pieces_read(ring_, before, owner)) {
      if (!goes_to_neighbour(ring_, before, owner, piece)) continue;
      plan_.receives.push_back({Buffer::kPartial, row, piece.count(), row_in(own, piece), before,
                                kPartialTag + piece.range});
      row += piece.count();
    }
  }

  void receive_home_sums(std::int32_t step) {
    const std::int32_t reader = after(rank_, step);
    std::int64_t row = 0;
    for (const Piece& piece : pieces_read(ring_, reader, rank_)) {
      if (goes_to_neighbour(ring_, reader, rank_, piece)) continue;
      plan_.receives.push_back(
          {Buffer::kHome, row, piece.count(), own_row(piece), reader, kHomeTag + piece.range});
      row += piece.count();
    }
  }

  RingPlan& plan_;
  Ring ring_;
  std::int32_t rank_;
};

}  // namespace

void plan_transfers(RingPlan& plan) {
  Transfers transfers(plan);
  const bool gradients = plan.backward() && plan.key_gradients();
  for (std::int32_t stage = 0; stage < plan.size + (gradients ? 1 : 0); ++stage) {
    Stage made;
    made.sends.begin = plan.sends.size();
    made.receives.begin = plan.receives.size();
    if (stage + 1 < plan.size) transfers.add_keys(stage + 1);
    if (gradients && stage >= 2) transfers.add_gradients(stage - 1);
    made.sends.end = plan.sends.size();
    made.receives.end = plan.receives.size();
    plan.stages.push_back(made);
  }
}

}  // namespace tilewise::distributed
