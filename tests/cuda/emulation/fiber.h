// A fiber is a function on a stack of its own. It runs until it suspends itself, and goes on from
// there when it is resumed. Switching needs no system call: a collective of a warp suspends 32 of
// them.
#pragma once

#include <cstddef>

namespace tilewise::emulation {

class Fiber {
 public:
  using Function = void (*)(void* argument);

  // `number` counts the fibers that run alternately. Their stacks begin at different cache lines;
  // otherwise the same variable of all fibers would compete for one cache set.
  explicit Fiber(std::size_t number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls function(argument). A fiber that had not finished is abandoned, and its
  // variables are never destroyed.
  void begin(Function function, void* argument);

  // Runs the fiber until it suspends itself (false) or its function returns (true). Not called from
  // a fiber.
  bool resume();

  // Returns to resume(). Called from inside of the fiber.
  void suspend();

 private:
  static void enter();
  void forget();

  std::size_t number_;
  std::byte* stack_;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  void* inside_[5] = {};   // where the fiber suspended itself
  void* outside_[5] = {};  // where it was resumed
  bool entered_ = false;   // its stack has a frame of enter()
  bool finished_ = true;
};

}  // namespace tilewise::emulation
