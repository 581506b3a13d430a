#include "tfctr_ops/cc/store/sparse_optimizer.h"

#include <algorithm>

namespace tfctr {

int64_t SparseOptimizer::NumSlotFloats(int64_t dim) const {
  switch (kind) {
    case Kind::kSgd:
      return 0;
    case Kind::kAdagrad:
      return dim;
    case Kind::kRowwiseAdagrad:
      return 1;
    case Kind::kAdam:
    case Kind::kFtrl:
      return 2 * dim;
  }
  return 0;
}

void SparseOptimizer::InitializeSlots(int64_t dim, float* slots) const {
  const int64_t num_floats = NumSlotFloats(dim);
  std::fill_n(slots, num_floats, 0.0f);
  const bool accumulates = kind == Kind::kAdagrad ||
                           kind == Kind::kRowwiseAdagrad || kind == Kind::kFtrl;
  // FTRL: the accumulator comes first, the linear term second.
  const int64_t num_accumulators = kind == Kind::kFtrl ? dim : num_floats;
  if (accumulates) std::fill_n(slots, num_accumulators, initial_accumulator);
}

}  // namespace tfctr
