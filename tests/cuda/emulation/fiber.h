// A function on a stack of its own, which runs until it suspends itself and goes on from there when
// it is resumed. No system call on the way: a product of a warp suspends 32 of them.
#pragma once

#include <cstddef>

namespace tilewise::emulation {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  // `number` of the fiber among those that run in turns: their stacks begin at different lines of
  // the cache, or the same variable of all would compete for one.
  explicit Fiber(std::size_t number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls body(argument). Whatever the fiber did before is forgotten, and its
  // variables are never destroyed, if it had not finished.
  void begin(Body body, void* argument);

  // Runs the fiber until it suspends itself (false) or its body returns (true). Not from a fiber.
  bool resume();

  // Back to resume(). From inside of a fiber.
  void suspend();

 private:
  static void enter();
  void forget();

  std::size_t number_;
  std::byte* stack_;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  void* inside_[5] = {};   // where the fiber suspended itself
  void* outside_[5] = {};  // where it was resumed
  bool entered_ = false;   // its stack holds enter()
  bool finished_ = true;
};

}  // namespace tilewise::emulation
