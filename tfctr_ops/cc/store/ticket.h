// Ticket: what a training lookup found, kept for the update that follows, so
// that the update neither hashes nor probes again.
//
// It holds row handles (slot and generation of the shard), not pins: if a row
// left in between, the update finds its key again, or brings it back.

#ifndef TFCTR_OPS_CC_STORE_TICKET_H_
#define TFCTR_OPS_CC_STORE_TICKET_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tfctr_ops/cc/store/batch.h"

namespace tfctr {

class EmbeddingStore;

// A batch and the distinct rows its keys were resolved to, shard by shard.
struct ResolvedBatch {
  // Makes room for the keys of `batch`.
  void Resize(int64_t num_shards) {
    places.Resize(batch.size());
    slots.Resize(batch.size());
    firsts.Resize(batch.size());
    num_distinct.assign(static_cast<size_t>(num_shards), 0);
    generations.assign(static_cast<size_t>(num_shards), 0);
  }

  ShardBatch OfShard(int64_t shard) const {
    const int64_t offset = batch.offset(shard);
    return {batch.keys() + offset,  batch.offset(shard + 1) - offset,
            places.data() + offset, slots.data() + offset,
            firsts.data() + offset, num_distinct[static_cast<size_t>(shard)]};
  }

  PartitionedBatch batch;
  Buffer<int32_t> places;
  Buffer<uint32_t> slots;
  Buffer<int32_t> firsts;
  std::vector<int64_t> num_distinct;  // Of each shard.
  std::vector<uint64_t> generations;  // Of each shard, when it was resolved.
};

class Ticket {
 public:
  Ticket(std::shared_ptr<EmbeddingStore> store, int64_t num_keys,
         std::unique_ptr<ResolvedBatch> resolved)
      : store_(std::move(store)),
        num_keys_(num_keys),
        resolved_(std::move(resolved)) {}
  // Tells the store that this lookup will not report a gradient any more.
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // Keys of the lookup, absent ones included: the rows its gradient must have.
  int64_t num_keys() const { return num_keys_; }
  // The store that was asked, which alone can take the gradient.
  const EmbeddingStore& store() const { return *store_; }

 private:
  friend class EmbeddingStore;

  const std::shared_ptr<EmbeddingStore> store_;
  const int64_t num_keys_;
  // Guarded by the store's step_mutex_:
  std::unique_ptr<ResolvedBatch> resolved_;  // Null once it has reported.
  int64_t sequence_ = 0;  // Tickets are numbered as they are given out.
  int64_t imports_ = 0;   // Of the store, when it was given out.
};

// The gradient of a lookup's rows, (ticket->num_keys(), dim).
struct Gradient {
  const float* values;
  std::shared_ptr<const void> owner;  // Keeps `values` alive until it is used.
  bool is_good = true;  // If false, it counts as bad, whatever its values.
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_TICKET_H_
