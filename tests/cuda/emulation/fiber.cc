#include "cuda/emulation/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define TILEWISE_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TILEWISE_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(TILEWISE_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(first, bytes)
#endif

// Switching leaves functions without returning from them, which a sanitizer must not track.
#define TILEWISE_SWITCHES __attribute__((noinline, no_sanitize("address")))

namespace tilewise::emulation {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kStackBytes = 256 * 1024;
// Stack n begins n % 61 times 17 cache lines further down.
constexpr std::size_t kColours = 61;
constexpr std::size_t kColourBytes = 17 * 64;

Fiber* entering = nullptr;

// Tells the address sanitizer which stack is the thread's.
struct Stack {
  const void* first = nullptr;
  std::size_t bytes = 0;
};
#if defined(TILEWISE_ADDRESS_SANITIZER)
void leave_for(const Stack& stack) {
  __sanitizer_start_switch_fiber(nullptr, stack.first, stack.bytes);
}
void arrive_from(Stack* stack) {
  __sanitizer_finish_switch_fiber(nullptr, &stack->first, &stack->bytes);
}
#else
void leave_for(const Stack&) {}
void arrive_from(Stack*) {}
#endif
Stack outside;              // of the caller of resume()
bool left_outside = false;  // the last switch left that stack
void* caller[5];            // where resume() goes on

// Arrives in a fiber.
void arrive_inside() {
  Stack left;
  arrive_from(&left);
  if (left_outside) outside = left;
  left_outside = false;
}

// __builtin_longjmp may not return to a function that contains it.
[[noreturn]] TILEWISE_SWITCHES void jump(void** to) { __builtin_longjmp(to, 1); }

}  // namespace

Fiber::Fiber(std::size_t number) : number_(number) {
  void* const memory = mmap(nullptr, kStackBytes + kPageBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kPageBytes, PROT_NONE);  // stops a stack that overflows
  stack_ = static_cast<std::byte*>(memory) + kPageBytes;
}

Fiber::~Fiber() {
  forget();
  munmap(stack_ - kPageBytes, kStackBytes + kPageBytes);
}

void Fiber::forget() {
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
  entered_ = false;
}

void Fiber::begin(Function function, void* argument) {
  if (!finished_) forget();
  function_ = function;
  argument_ = argument;
  finished_ = false;
}

TILEWISE_SWITCHES void Fiber::go_on() {
  leave_for({stack_, kStackBytes});
  if (entered_) jump(inside_);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack_;
  context.uc_stack.ss_size = kStackBytes - number_ % kColours * kColourBytes;
  makecontext(&context, enter, 0);
  entered_ = true;
  entering = this;
  setcontext(&context);
  __builtin_unreachable();
}

TILEWISE_SWITCHES void Fiber::resume() {
  if (__builtin_setjmp(caller) == 0) {
    left_outside = true;
    go_on();
  }
  Stack fiber;
  arrive_from(&fiber);
}

TILEWISE_SWITCHES void Fiber::suspend() {
  if (__builtin_setjmp(inside_) == 0) {
    leave_for(outside);
    jump(caller);
  }
  arrive_inside();
}

TILEWISE_SWITCHES void Fiber::suspend_for(Fiber& next) {
  if (__builtin_setjmp(inside_) == 0) next.go_on();
  arrive_inside();
}

TILEWISE_SWITCHES void Fiber::enter() {
  arrive_inside();
  Fiber* const self = entering;
  while (true) {
    self->function_(self->argument_);
    self->finished_ = true;
    self->suspend();
  }
}

}  // namespace tilewise::emulation
