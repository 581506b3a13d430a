// Shard: the part of a store whose keys' hashes begin with the same bits. It
// ties the index to the rows and works off its share of a batch.
//
// Thread safety: the caller holds mutex() around every other call.

#ifndef TFCTR_OPS_CC_STORE_SHARD_H_
#define TFCTR_OPS_CC_STORE_SHARD_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "tfctr_ops/cc/store/admission.h"
#include "tfctr_ops/cc/store/arena.h"
#include "tfctr_ops/cc/store/eviction.h"
#include "tfctr_ops/cc/store/key_index.h"
#include "tfctr_ops/cc/store/ram_tier.h"
#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/ssd_tier.h"
#include "tfctr_ops/cc/store/store_options.h"

namespace tfctr {

// One key of a batch.
struct PlacedKey {
  int64_t id;
  uint32_t feature;
  uint32_t tag;      // Of the index.
  int32_t position;  // In the batch.
  int32_t count;     // How often it counts; see KeyBatch.
};
static_assert(sizeof(PlacedKey) == 24, "A batch has very many.");

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
  // The shard is number `number` of its store. `ssd` is null without an SSD
  // tier. `options`, `arena` and `ssd` must outlive the shard.
  Shard(const StoreOptions& options, const RowLayout& layout,
        int64_t chunk_bytes, int64_t number, Arena* arena, SsdTier* ssd);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  std::mutex& mutex() { return mutex_; }

  // Copies the weights of known keys, and the default row of all others, to
  // rows[position * dim]. Changes nothing. Keys that are not in memory, but may
  // be on disk, read the default row and are appended to `absent`, if it is not
  // null.
  void Read(const PlacedKey* keys, int64_t n, float* rows,
            std::vector<const PlacedKey*>* absent) const;

  // Finds the distinct rows of the batch and copies their weights to `rows`,
  // unless that is null. Keys that are not in memory are inserted if `absent`
  // is null; else their place is -1, and `absent` is given one of each, sorted,
  // and `occurrences`, unless it is null, how often each counts.
  void Resolve(ShardBatch* batch, float* rows,
               std::vector<const PlacedKey*>* absent,
               std::vector<int64_t>* occurrences = nullptr);

  // Inserts the keys that Resolve left out, unless they were brought up since.
  // If `inserts` is false, those that have no row by now read the default row
  // instead, and their place stays -1.
  void InsertAbsent(ShardBatch* batch, float* rows, bool inserts = true);

  // Frees up to `wanted` rows, never one of `batch`. Returns how many. With an
  // SSD tier, rows that hold something go there.
  // REQUIRES: Resolve(batch) was the last call.
  int64_t Evict(int64_t wanted, const ShardBatch& batch);

  // One of each of the keys that are not in memory, sorted.
  std::vector<const PlacedKey*> FindAbsent(const PlacedKey* keys,
                                           int64_t n) const;

  // A copy on disk that may be of a key, and room for it.
  struct DiskCopy {
    const PlacedKey* key;
    Location location;
    std::byte* row;
    // The number of its segment: the location may be given to another, while
    // the lock is not held.
    uint64_t segment;
  };
  // Appends where a key that is not in memory may be on disk: nearly always at
  // one place or none.
  void FindOnDisk(const PlacedKey& key, std::vector<DiskCopy>* copies) const;
  // Whether a row that was read is the one that FindOnDisk looked for.
  static bool IsCopyOf(const DiskCopy& copy) {
    return RowLayout::Header(copy.row)->Is(copy.key->feature, copy.key->id);
  }
  // Brings up a row that was read. Does nothing, and returns false, if the row
  // has come up or moved since it was looked for. `used` is whether a batch
  // uses it now, not later.
  bool Promote(const DiskCopy& copy, bool used);

  // Starts loading where the key of a row on disk is in the index.
  void PrefetchRow(const std::byte* row) const {
    index_.Prefetch(TagOf(*RowLayout::Header(const_cast<std::byte*>(row))));
  }
  // Moves a live row of a segment that is given up. Returns false if there is
  // no room. REQUIRES: `row` is what is at `location`.
  bool Relocate(const std::byte* row, Location location);
  // Whether the row at `location` is on disk only.
  bool IsOnDiskOnly(const std::byte* row, Location location) const;

  // Changes whenever a row leaves, so that a slot noted earlier may have become
  // another key's.
  uint64_t generation() const { return generation_; }

  // The slot of the key, or kNoSlot if it is not in memory.
  static constexpr uint32_t kNoSlot = 0xffffffffU;
  uint32_t Find(const PlacedKey& key) const;
  // Inserts the key with its initial row. REQUIRES: it is absent, from the disk
  // too.
  uint32_t Insert(const PlacedKey& key);
  // Starts loading where the key is in the index, for what follows soon.
  void PrefetchKey(const PlacedKey& key) const { index_.Prefetch(key.tag); }

  // Notes that the row's count was set.
  void CountWasSet(uint32_t slot) { eviction_.Use(&slot, 1); }

  // Removes the row of a slot for good.
  void Release(uint32_t slot);
  // The same for a row that is on disk only.
  void ReleaseOnDisk(uint32_t feature, int64_t id, Location location);
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

  // Notes that the row will be changed; returns the row.
  std::byte* MakeKnown(uint32_t slot);
  // The same for rows that a kernel changed: how many became known by it, and
  // which were as on disk before.
  void CountChanged(int64_t newly_known, const uint32_t* slots,
                    const int32_t* newly_dirty, int64_t num_newly_dirty);

  // Tells it of keys that get a row, or lose one that was never updated. It
  // must outlive the shard.
  void set_admission(Admission* admission) { admission_ = admission; }

  // Keeps copies of rows on disk from now on, for snapshots alone. REQUIRES:
  // there is no tier.
  void KeepCopies(SsdTier* ssd);
  // From here on, rows that have changed since the last snapshot are saved
  // before they change again.
  void BeginSnapshot();
  // Saves rows that were changed before BeginSnapshot; returns whether there
  // may be more. A few at a time, since the lock is held meanwhile.
  bool SaveSome();
  // Saves the row if its snapshot still needs that, before it changes.
  void SaveIfNeeded(uint32_t slot) {
    if (saves_ && IsOfSnapshot(*rows_.Header(slot))) Save(slot);
  }
  bool saves() const { return saves_; }
  // What RowHeader::dirty is set to.
  uint32_t mark() const { return mark_; }
  // Returns whether all was saved.
  bool EndSnapshot();

  const RamTier& rows() const { return rows_; }
  // Rows that hold something, in memory or on disk.
  int64_t known() const { return known_ + on_disk_only_; }
  int64_t on_disk_only() const { return on_disk_only_; }
  int64_t number() const { return number_; }
  // Rows in memory that hold nothing.
  int64_t unknown() const { return rows_.size() - known_; }
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

  // Takes the row out of memory, to disk if it holds something. Returns false
  // if there is no room.
  bool Demote(uint32_t slot);
  // Writes the row to disk, in place of its copy there. Returns false if there
  // is no room.
  bool WriteCopy(uint32_t slot);
  // Whether the row was changed before the snapshot began, and not saved yet.
  bool IsOfSnapshot(const RowHeader& header) const {
    return header.dirty != 0 && header.dirty != mark_;
  }
  void Save(uint32_t slot);
  uint32_t Allocate();
  uint32_t TagOf(const RowHeader& header) const;

  const StoreOptions& options_;
  const RowLayout& layout_;
  const RowKernels& kernels_;
  const int64_t number_;
  SsdTier* ssd_;
  Admission* admission_ = nullptr;  // Null if every key is admitted.
  bool demotes_;  // Whether rows that leave memory go to disk.
  std::mutex mutex_;
  KeyIndex index_;
  RamTier rows_;
  Eviction eviction_;
  // With an SSD tier, of each slot: where the copy of its row is, or kNowhere.
  // The row itself may be newer.
  std::vector<Location> copies_;
  // Slots of rows that differ from their copies, some of them no longer. It is
  // kept from the first snapshot on, and while it is shorter than a scan.
  std::vector<uint32_t> dirty_;
  bool lists_dirty_ = false;
  // Of the snapshot that is being made: slots to look at, or all up to num_.
  bool saves_ = false;
  bool saved_all_ = true;  // Of the snapshot that was begun.
  bool save_failed_ = false;
  bool scans_ = false;
  std::vector<uint32_t> to_save_;
  int64_t next_to_save_ = 0;
  uint32_t mark_ = 1;  // 1 and 2 in turn, from snapshot to snapshot.
  uint64_t generation_ = 0;
  int64_t known_ = 0;  // In memory.
  int64_t on_disk_only_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SHARD_H_
