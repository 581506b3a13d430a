// KeyRoutes: the distinct keys of a batch, in the order of the ranks that own
// them. Each key of a batch then travels once, whatever how often it occurs.

#ifndef TFCTR_OPS_CC_STORE_KEY_ROUTES_H_
#define TFCTR_OPS_CC_STORE_KEY_ROUTES_H_

#include <cstdint>
#include <vector>

#include "tfctr_ops/cc/store/batch.h"
#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/hash.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// The rank that owns the key (feature, id): a pure function of both, in
// [0, num_owners). Its salt is not that of any store, or the keys of one rank
// would all fall into a few shards of its store.
inline int32_t OwnerOf(uint32_t feature, int64_t id, int64_t num_owners) {
  constexpr uint64_t kOwnerSalt = 0x6a09e667f3bcc909ULL;
  const uint64_t hash = HashKey(kOwnerSalt, feature, id) >> 32;
  return static_cast<int32_t>((hash * static_cast<uint64_t>(num_owners)) >> 32);
}

class KeyRoutes {
 public:
  // Finds the distinct keys of the batch, which must outlive this object.
  // Returns InvalidArgument if a feature is not in [-1, num_features).
  Status Route(const KeyBatch& batch, int64_t num_features, int64_t num_owners,
               Executor* executor);

  int64_t num_distinct() const { return num_distinct_; }

  // Writes the distinct keys by owner, and those of an owner by feature; the
  // order among these depends on the keys alone.
  //   ids: (num_distinct).
  //   counts: (num_owners, num_features), how many keys each pair has.
  //   places: (n), of each key of the batch its place in `ids`; -1 if absent.
  void Write(Executor* executor, int64_t* ids, int32_t* counts,
             int32_t* places) const;

 private:
  // The distinct keys of the shard, found one after the other; `own` is room
  // for as many as the shard has keys.
  void FindDistinct(int64_t shard);
  int64_t num_cells() const { return num_owners_ * num_features_; }

  int64_t n_ = 0;
  int64_t num_features_ = 0;
  int64_t num_owners_ = 0;
  int64_t num_shards_ = 0;
  int64_t num_distinct_ = 0;
  PartitionedBatch batch_;
  // Of each partitioned key: which of its shard's distinct keys it is.
  Buffer<int32_t> distinct_;
  // Of each distinct key of a shard, from the shard's offset on: the first of
  // its partitioned keys, and owner * num_features + feature.
  Buffer<int32_t> firsts_;
  Buffer<int32_t> cells_;
  std::vector<int64_t> num_of_shard_;
  // [shard][cell]: how many distinct keys, then where the first of them goes.
  std::vector<int32_t> counts_;
  std::vector<int32_t> starts_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_KEY_ROUTES_H_
