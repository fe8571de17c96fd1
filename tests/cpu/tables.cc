// Chooses among the tables of probes.h at run time.
#include "cpu/probes.h"
#include "cpu/targets.h"

namespace tilewise::cpu {

#if defined(__x86_64__)
namespace avx512 {
extern const Probes kProbes;
}
namespace avx2 {
extern const Probes kProbes;
}
namespace baseline {
extern const Probes kProbes;
}
namespace avx512_bf16 {
extern const Bf16Probes kBf16Probes;
}

const Probes& generic_probes() { return baseline::kProbes; }
const Probes& best_probes() {
  if (find_target("avx512")->available()) return avx512::kProbes;
  if (find_target("avx2")->available()) return avx2::kProbes;
  return baseline::kProbes;
}
const Bf16Probes* bf16_probes() {
  return find_target("avx512_bf16")->available() ? &avx512_bf16::kBf16Probes : nullptr;
}
#else
#if defined(__aarch64__)
namespace neon {
extern const Probes kProbes;
}
const Probes& generic_probes() { return neon::kProbes; }
#else
namespace generic {
extern const Probes kProbes;
}
const Probes& generic_probes() { return generic::kProbes; }
#endif
const Probes& best_probes() { return generic_probes(); }
const Bf16Probes* bf16_probes() { return nullptr; }
#endif

}  // namespace tilewise::cpu
