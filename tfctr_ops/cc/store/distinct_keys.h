// DistinctKeys: the distinct keys of a batch whose rows lie in tables of
// others, in the order of the locks of such a table. See lock_order.h.

#ifndef TFCTR_OPS_CC_STORE_DISTINCT_KEYS_H_
#define TFCTR_OPS_CC_STORE_DISTINCT_KEYS_H_

#include <cstdint>

#include "tfctr_ops/cc/store/batch.h"
#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/key_routes.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

class DistinctKeys {
 public:
  // Finds the distinct keys of the batch, which must outlive this object.
  // Returns InvalidArgument if a feature is not in [-1, num_features).
  Status Find(const KeyBatch& batch, int64_t num_features, bool has_counts,
              Executor* executor);

  int64_t size() const { return routes_.num_distinct(); }

  // Writes the distinct keys, those of one group of locks as they came, and
  // where they occur.
  //   ids, features, words: (size). See WordOf.
  //   counts: (size), how often each counts in the batch; not used unless Find
  //     was told that it `has_counts`.
  //   places: (batch.n), of each key of the batch its place among the distinct
  //     ones; -1 if it is absent.
  void Write(Executor* executor, int64_t* ids, int32_t* features,
             int64_t* words, int32_t* counts, int32_t* places) const;

 private:
  KeyRoutes routes_;
  int64_t num_keys_ = 0;  // Of the batch.
  int64_t num_features_ = 0;
  bool has_counts_ = false;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_DISTINCT_KEYS_H_
