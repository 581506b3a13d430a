// Shard: the part of a store whose keys' hashes begin with the same bits. It
// ties the index to the rows and works off its share of a batch.
//
// Thread safety: the caller holds mutex() around every other call.

#ifndef TFCTR_OPS_CC_STORE_SHARD_H_
#define TFCTR_OPS_CC_STORE_SHARD_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "tfctr_ops/cc/store/arena.h"
#include "tfctr_ops/cc/store/key_index.h"
#include "tfctr_ops/cc/store/ram_tier.h"
#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/store_options.h"

namespace tfctr {

// One key of a batch.
struct PlacedKey {
  int64_t id;
  uint32_t feature;
  uint32_t tag;      // Of the index.
  int32_t position;  // In the batch.
};

// A shard's share of a batch, with room for what the shard finds out. All
// arrays have `size` elements; the caller owns them.
struct ShardBatch {
  const PlacedKey* keys;
  int64_t size;
  int32_t* places;  // Of each key: its place among the distinct rows, or -1.
  uint32_t* slots;  // Of each distinct row.
  int32_t* firsts;  // Of each distinct row: the first of its keys.
  int64_t num_distinct;
};

class Shard {
 public:
  // `options` and `arena` must outlive the shard.
  Shard(const StoreOptions& options, const RowLayout& layout,
        int64_t chunk_bytes, Arena* arena);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  std::mutex& mutex() { return mutex_; }

  // Copies the weights of known keys, and the default row of all others, to
  // rows[position * dim]. Changes nothing.
  void Read(const PlacedKey* keys, int64_t n, float* rows) const;

  // Finds the distinct rows of the batch and copies their weights to `rows`,
  // unless that is null. Absent
  // keys are inserted if `insert`; else their place is -1 and the return value
  // counts the distinct ones.
  int64_t Resolve(ShardBatch* batch, bool insert, float* rows);

  // Inserts the keys that Resolve left out.
  void InsertAbsent(ShardBatch* batch, float* rows);

  // Frees up to `wanted` rows, never one of `batch`. Returns how many.
  // REQUIRES: Resolve(batch) was the last call.
  int64_t Evict(int64_t wanted, const ShardBatch& batch);

  // Changes whenever a row leaves, so that a slot noted earlier may have become
  // another key's.
  uint64_t generation() const { return generation_; }

  // The slot of the key, or kNoSlot.
  static constexpr uint32_t kNoSlot = 0xffffffffU;
  uint32_t Find(const PlacedKey& key) const;
  // Inserts the key with its initial row. REQUIRES: it is absent.
  uint32_t Insert(const PlacedKey& key);
  // Whether the key was there.
  bool Remove(const PlacedKey& key);
  // Removes every row.
  void Clear();

  // The place of `slot`, whose header is given, among the distinct slots, *num
  // so far; adds it at the end if it is new. Works by the mark in the header.
  static int32_t PlaceOf(uint32_t slot, RowHeader* header, uint32_t* slots,
                         int64_t* num) {
    // A stale mark points outside or to another slot.
    if (header->mark < *num && slots[header->mark] == slot) {
      return static_cast<int32_t>(header->mark);
    }
    header->mark = static_cast<uint32_t>(*num);
    slots[(*num)++] = slot;
    return static_cast<int32_t>(header->mark);
  }

  // Notes that the row holds something now; returns the row.
  std::byte* MakeKnown(uint32_t slot) {
    RowHeader* header = rows_.Header(slot);
    known_ += !header->known;
    header->known = 1;
    return rows_.Row(slot);
  }
  // The same for rows that were made known without a call.
  void CountKnown(int64_t more) { known_ += more; }

  const RamTier& rows() const { return rows_; }
  int64_t known() const { return known_; }
  int64_t evicted() const { return evicted_; }

 private:
  struct FoundRow {
    uint32_t slot;   // kNoSlot if the key is absent.
    std::byte* row;  // Null if the key is absent.
  };

  // Calls use(start, size, found) for every group of keys in order, where
  // found[i] belongs to keys[start + i]. `use` may insert keys.
  template <typename Use>
  void ForEachGroup(const PlacedKey* keys, int64_t n, Use use) const;

  void Release(uint32_t slot);
  uint32_t TagOf(const RowHeader& header) const;

  const StoreOptions& options_;
  const RowLayout& layout_;
  const RowKernels& kernels_;
  std::mutex mutex_;
  KeyIndex index_;
  RamTier rows_;
  uint64_t generation_ = 0;
  int64_t hand_ = 0;  // Of the clock: the slot it looks at next.
  int64_t known_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SHARD_H_
