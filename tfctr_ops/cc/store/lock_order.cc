#include "tfctr_ops/cc/store/lock_order.h"

#include <cstddef>
#include <vector>

namespace tfctr {

void LocksToPlaces(int64_t n, int32_t* locks) {
  // Of each group of locks, how many words come before it.
  std::vector<int32_t> before((size_t{1} << 13) + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++before[static_cast<size_t>(locks[i]) + 1];
  for (size_t group = 1; group < before.size(); ++group) {
    before[group] += before[group - 1];
  }
  for (int64_t i = 0; i < n; ++i) {
    locks[i] = before[static_cast<size_t>(locks[i])]++;
  }
}

}  // namespace tfctr
