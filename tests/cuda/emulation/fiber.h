// A fiber is a function on a stack of its own. It runs until it suspends itself, and goes on from
// there when it is resumed. Switching needs no system call: a collective of a warp suspends 32 of
// them. Fibers of one thread run at a time.
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

  // Runs the fiber, and those that follow by suspend_for(), until one suspends itself or its
  // function returns. Not called from a fiber.
  void resume();

  // Whether the function has returned.
  bool finished() const { return finished_; }

  // Returns to resume(). Called from inside of the fiber.
  void suspend();

  // Suspends this fiber and runs `next`, without the way through resume(). Called from inside of
  // this fiber.
  void suspend_for(Fiber& next);

 private:
  [[noreturn]] void go_on();
  static void enter();
  void forget();

  std::size_t number_;
  std::byte* stack_;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  void* inside_[5] = {};  // where the fiber suspended itself
  bool entered_ = false;  // its stack has a frame of enter()
  bool finished_ = true;
};

}  // namespace tilewise::emulation
