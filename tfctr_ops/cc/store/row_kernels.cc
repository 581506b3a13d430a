#include "tfctr_ops/cc/store/row_kernels.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace tfctr {

namespace baseline {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

const RowKernels* FindRowKernels(const char* level) {
  if (std::strcmp(level, "baseline") == 0) return &baseline::kRowKernels;
  if (std::strcmp(level, "avx2") == 0 && __builtin_cpu_supports("avx2")) {
    return &avx2::kRowKernels;
  }
  if (std::strcmp(level, "avx512") == 0 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &avx512::kRowKernels;
  }
  return nullptr;
}

const RowKernels& BestRowKernels() {
  static const RowKernels* const best = [] {
    const char* asked = std::getenv("TFCTR_CPU_LEVEL");
    for (const char* level : {asked, "avx512", "avx2"}) {
      const RowKernels* kernels = level ? FindRowKernels(level) : nullptr;
      if (kernels != nullptr) return kernels;
    }
    return &baseline::kRowKernels;
  }();
  return *best;
}

}  // namespace tfctr
