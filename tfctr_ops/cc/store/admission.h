// Admission: decides which keys get a row, and remembers what it needs for it.
//
// It is asked in training lookups, about keys that have no row, and counts
// those that it refuses. A key that was admitted stays so until it is removed,
// even if its row is dropped before it was ever updated: the table of counts
// then remembers it. So neither the memory budget nor the tiers nor the number
// of shards changes what is admitted.
//
// Thread safety: what names a shard needs the lock of that shard; the rest, the
// locks of all, but for sizes, which need none. Several threads may count at
// once, each in its shard, or ask; but for the answer to be the same each time,
// no thread may count while another asks.

#ifndef TFCTR_OPS_CC_STORE_ADMISSION_H_
#define TFCTR_OPS_CC_STORE_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/bloom_filter.h"
#include "tfctr_ops/cc/store/count_table.h"
#include "tfctr_ops/cc/store/status.h"
#include "tfctr_ops/cc/store/store_options.h"

namespace tfctr {

class Admission {
 public:
  // What to say when there is no memory for it.
  static Status TooLarge(const StoreOptions& options);

  // The count of a key that is admitted and has no row in memory or on disk.
  static constexpr uint32_t kAdmitted = 0xffffffffU;

  // Throws std::bad_alloc. `options` must outlive this.
  // REQUIRES: options.admission.kind is not kNone.
  explicit Admission(const StoreOptions& options);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  struct Answer {
    bool admits;
    uint32_t count;  // Of the key, this lookup included.
  };
  // Whether a key without a row gets one in a lookup that has it `occurrences`
  // times, after `step` updates. Changes nothing: a lookup asks about all its
  // keys before it counts the first.
  Answer Ask(int64_t shard, uint32_t feature, int64_t id, int64_t occurrences,
             int64_t step) const;
  // Counts a key that does not, up to the count of the answer.
  void Count(int64_t shard, uint32_t feature, int64_t id, uint32_t count);
  // The key has a row now, or was removed.
  void Forget(int64_t shard, uint32_t feature, int64_t id) {
    table(shard).Erase(feature, id);
  }
  // The key lost its row, which was never updated.
  void Remember(int64_t shard, uint32_t feature, int64_t id) {
    table(shard).Set(feature, id, kAdmitted);
  }
  // As if nothing had been seen.
  void Clear();

  // Keys that are counted one by one.
  int64_t tracked_keys(int64_t shard) const { return table(shard).size(); }
  int64_t allocated_bytes(int64_t shard) const {
    return table(shard).allocated_bytes();
  }
  int64_t filter_bytes() const {
    return filter_ == nullptr ? 0 : filter_->bytes();
  }
  // What a snapshot keeps, but for the checksum; see admission_format.h.
  // `admitted` are keys whose rows it does not keep.
  std::vector<char> Save(const std::vector<CountTable::Entry>& admitted) const;
  // Takes back what was saved, beside what is there, with its features
  // renumbered: feature f becomes features[f]. What keys of this kind of
  // admission do not need is left out, and so are keys for which `takes` is
  // false, but for what a filter counts. Returns DataLoss or InvalidArgument,
  // with nothing changed, if the bytes are not such; `path` is for messages.
  // REQUIRES: what is there has been loaded with the same features.
  Status Load(const std::string& path, const std::vector<char>& bytes,
              const std::vector<int32_t>& features,
              const std::function<bool(uint32_t feature, int64_t id)>& takes);

 private:
  CountTable& table(int64_t shard) {
    return tables_[static_cast<size_t>(shard)];
  }
  const CountTable& table(int64_t shard) const {
    return tables_[static_cast<size_t>(shard)];
  }
  uint64_t FilterHash(uint32_t feature, int64_t id) const;
  // Gives the features the numbers that the saved filter knew them by.
  void NumberFeatures(const uint32_t* saved, int64_t num_saved,
                      const std::vector<int32_t>& features);

  const StoreOptions& options_;
  std::vector<CountTable> tables_;               // Of each shard.
  std::unique_ptr<CountingBloomFilter> filter_;  // Null unless kBloom.
  // By which number the filter knows a feature: a restore may give features
  // others, and a filter cannot be renumbered.
  std::vector<uint32_t> filter_features_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ADMISSION_H_
