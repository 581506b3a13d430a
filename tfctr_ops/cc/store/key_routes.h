// KeyRoutes: the distinct keys of a batch, in the order of the ranks that own
// them. Each key of a batch then travels once, whatever how often it occurs.

#ifndef TFCTR_OPS_CC_STORE_KEY_ROUTES_H_
#define TFCTR_OPS_CC_STORE_KEY_ROUTES_H_

#include <cstdint>
#include <vector>

#include "tfctr_ops/cc/store/batch.h"
#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

class KeyRoutes {
 public:
  // Finds the distinct keys of the batch, which must outlive this object.
  // The features are those of tables which have `num_features` of them each,
  // numbered one table after the other; the owner of a key depends on its
  // number within the table. Returns InvalidArgument if a feature is neither -1
  // nor one of them.
  Status Route(const KeyBatch& batch, const std::vector<int64_t>& num_features,
               int64_t num_owners, bool sends_counts, Executor* executor);

  int64_t num_distinct() const { return num_distinct_; }
  int64_t message_size() const;

  // Writes a message to each owner, one behind the other: how many of its keys
  // each feature has; then their ids, by feature; then, if counts are sent, how
  // often each counts in the batch, two to a number. The order of the ids of a
  // feature depends on the keys alone.
  //   messages: (message_size).
  //   sizes: (num_owners), of each message.
  //   num_keys: (num_owners), in each message.
  //   places: (n), of each key of the batch its place among the distinct ones,
  //     counted over all messages; -1 if it is absent.
  void Write(Executor* executor, int64_t* messages, int32_t* sizes,
             int32_t* num_keys, int32_t* places) const;

 private:
  // The distinct keys of the shard, found one after the other; `own` is room
  // for as many as the shard has keys.
  void FindDistinct(int64_t shard);
  int64_t num_cells() const { return num_owners_ * num_features_; }
  int64_t NumKeysOf(int64_t owner, int64_t feature) const;

  KeyBatch asked_ = {};
  int64_t num_features_ = 0;
  int64_t num_owners_ = 0;
  bool sends_counts_ = false;
  std::vector<uint32_t> number_in_table_;  // Of each feature.
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
  // [shard][cell]: how many distinct keys, then which is the first of them.
  std::vector<int32_t> counts_;
  std::vector<int32_t> starts_;
};

// The keys of messages that KeyRoutes wrote, as they were received.
struct KeyMessages {
  const int64_t* messages;
  int64_t size;
  const int32_t* sizes;  // (num_senders).
  int64_t num_senders;
  int64_t num_features;
  bool has_counts;

  // Of all keys. Returns InvalidArgument if the messages are none.
  Status CountKeys(int64_t* num_keys) const;
  // Writes the ids, features and, if there are any, counts, (num_keys) each,
  // and how many keys each sender has sent, (num_senders). REQUIRES: CountKeys
  // returned Ok.
  void Read(int64_t* ids, int32_t* features, int32_t* num_keys,
            int32_t* counts) const;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_KEY_ROUTES_H_
