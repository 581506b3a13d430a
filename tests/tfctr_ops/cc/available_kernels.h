// The row kernels of every CPU level that this processor has.

#ifndef TESTS_TFCTR_OPS_CC_AVAILABLE_KERNELS_H_
#define TESTS_TFCTR_OPS_CC_AVAILABLE_KERNELS_H_

#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tfctr_ops/cc/store/row_kernels.h"

namespace tfctr {
namespace testing {

inline std::vector<const RowKernels*> AvailableKernels() {
  std::vector<const RowKernels*> kernels;
  for (const char* level : {"baseline", "avx2", "avx512"}) {
    const RowKernels* found = FindRowKernels(level);
    if (found == nullptr) continue;
    CHECK_EQ(std::string(found->level), level);
    kernels.push_back(found);
  }
  return kernels;
}

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_AVAILABLE_KERNELS_H_
