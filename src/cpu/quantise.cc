#include "cpu/quantise.h"

#include <cstring>
#include <iterator>

#include "cpu/targets.h"

namespace tilewise::cpu {

#if defined(__x86_64__)
namespace avx512 {
extern const TargetQuantise kQuantise;
}
namespace avx2 {
extern const TargetQuantise kQuantise;
}
namespace baseline {
extern const TargetQuantise kQuantise;
}
#elif defined(__aarch64__)
namespace neon {
extern const TargetQuantise kQuantise;
}
#else
namespace generic {
extern const TargetQuantise kQuantise;
}
#endif

namespace {

struct Entry {
  const char* target;
  const TargetQuantise* functions;
};
constexpr Entry kEntries[] = {
#if defined(__x86_64__)
    {"avx512", &avx512::kQuantise},
    {"avx2", &avx2::kQuantise},
    {"baseline", &baseline::kQuantise},
#elif defined(__aarch64__)
    {"neon", &neon::kQuantise},
#else
    {"generic", &generic::kQuantise},
#endif
};

}  // namespace

const TargetQuantise& quantise_for(const char* cpu_target) {
  const Target* const forced = cpu_target != nullptr ? find_target(cpu_target) : nullptr;
  const char* const wanted =
      forced != nullptr && forced->base != nullptr ? forced->base : cpu_target;
  for (const Entry& entry : kEntries) {
    const bool matches = wanted == nullptr || std::strcmp(wanted, entry.target) == 0;
    if (matches && find_target(entry.target)->available()) return *entry.functions;
  }
  return *kEntries[std::size(kEntries) - 1].functions;
}

}  // namespace tilewise::cpu
