// The fused update of rows that lie in a table of others.
//
// Such a row is `width` floats: [weights | slots | feature | updates | last
// update], the last three being int32 whose bits stand in the place of a float.

#ifndef TFCTR_OPS_CC_STORE_FUSED_ROWS_H_
#define TFCTR_OPS_CC_STORE_FUSED_ROWS_H_

#include <cstdint>

#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/sparse_optimizer.h"

namespace tfctr {

constexpr int64_t kFusedCounters = 3;

// Distinct rows as they were found, and what else is known of their keys.
struct FusedRows {
  const float* rows;  // (n, width); the counters in it are not looked at.
  int64_t n;
  const int32_t* features;  // (n).
  const int32_t* updates;   // (n). How many each row has seen.
  // (n). How many samples have each key; null unless the optimizer clips.
  const int32_t* samples;
};

// Writes the rows after one more update, which is as that of an EmbeddingStore.
//   gradients: (n, dim), summed over equal keys.
//   updated: (n, width), where width = dim + slots + kFusedCounters.
// Returns how many gradients were clipped. The same for any number of threads.
int64_t UpdateFusedRows(const SparseOptimizer& optimizer,
                        const UpdateStep& step, int64_t dim,
                        const FusedRows& rows, const float* gradients,
                        Executor* executor, float* updated);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_FUSED_ROWS_H_
