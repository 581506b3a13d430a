// The keys of a batch, and their partition by shard.

#ifndef TFCTR_OPS_CC_STORE_BATCH_H_
#define TFCTR_OPS_CC_STORE_BATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/shard.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// An array that is not cleared when it is made, unlike std::vector.
template <typename T>
class Buffer {
 public:
  T* Resize(int64_t n) {
    if (n > capacity_) {
      data_.reset(new T[static_cast<size_t>(n)]);
      capacity_ = n;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
  int64_t capacity_ = 0;
};

// Keys as the caller gives them: key i is (features[i % num_features], ids[i]).
// Feature -1 stands for an absent key: it reads zeros and takes no gradient.
struct KeyBatch {
  const int64_t* ids;  // (n)
  int64_t n;
  const int32_t* features;  // (num_features); n is a multiple of num_features.
  int64_t num_features;
  // (n), none negative: how often each key counts, or null: each once.
  const int32_t* counts = nullptr;

  int32_t Count(int64_t i) const { return counts == nullptr ? 1 : counts[i]; }
};

// The keys of a batch, ordered by shard and, within a shard, as they came: the
// gradients of a key are then always summed in the order of the batch.
class PartitionedBatch {
 public:
  // Returns InvalidArgument if a feature is not in [-1, feature_limit).
  Status Partition(const KeyBatch& batch, int shard_bits, uint64_t salt,
                   int64_t feature_limit, Executor* executor);

  // Keys of shard s are keys()[offset(s)] to keys()[offset(s + 1)].
  const PlacedKey* keys() const { return keys_.data(); }
  int64_t offset(int64_t shard) const {
    return offsets_[static_cast<size_t>(shard)];
  }
  // Keys that are not absent.
  int64_t size() const { return offsets_.back(); }

 private:
  Buffer<PlacedKey> keys_;
  Buffer<uint64_t> hashes_;
  std::vector<int64_t> offsets_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_BATCH_H_
