// KeyIndex: finds the row slot of a key within one shard.
//
// Extendible hashing: a directory, indexed by the high bits of the tag, points
// to segments; each segment is a small open-addressing table with linear
// probing. A full segment is split on its own, which moves at most a few
// thousand 8-byte entries, so the index grows without ever stopping to rehash.
//
// An entry holds 32 bits of the key's hash (the tag) and a number that says
// where the row is: its slot in memory, or its location on disk. Tags may
// collide: the caller compares the key in the row. The tag alone suffices to
// place an entry, so splitting never touches a row.
//
// Thread safety: none; the shard's lock guards it.

#ifndef TFCTR_OPS_CC_STORE_KEY_INDEX_H_
#define TFCTR_OPS_CC_STORE_KEY_INDEX_H_

#include <cstdint>
#include <vector>

#include "tfctr_ops/cc/store/arena.h"

namespace tfctr {

class KeyIndex {
 public:
  // `arena` must outlive the index.
  explicit KeyIndex(Arena* arena);
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  // The high bit of a number that stands for a place on disk.
  static constexpr uint32_t kOnDisk = 0x80000000U;

  // Walks the entries whose tag is `tag`:
  //   for (auto c = index.Find(tag); c.found(); c = index.FindNext(c)) ...
  class Cursor {
   public:
    bool found() const { return entry_ != 0; }
    bool is_on_disk() const { return (number() & kOnDisk) != 0; }
    // REQUIRES: found, and not on disk.
    uint32_t slot() const { return number(); }
    // REQUIRES: found, and on disk.
    uint32_t location() const { return number() & ~kOnDisk; }

   private:
    friend class KeyIndex;
    uint32_t number() const { return static_cast<uint32_t>(entry_) - 1; }
    uint64_t entry_ = 0;
    uint32_t tag_ = 0;
    uint32_t place_ = 0;
  };
  Cursor Find(uint32_t tag) const { return view().Find(tag); }
  void Prefetch(uint32_t tag) const { view().Prefetch(tag); }
  Cursor FindNext(const Cursor& cursor) const {
    return view().Search(cursor.tag_, cursor.place_ + 1);
  }

 private:
  // Where a search goes, by value in the directory: a pointer to it would be
  // one more load from memory for nearly every key of a batch.
  struct Segment {
    // tag << 32 | number + 1; zero is empty. The low bits of the tag choose the
    // place, the high ones the segment.
    uint64_t* entries;
    uint32_t mask;    // Capacity - 1.
    uint32_t number;  // Among loads_.
  };
  struct Load {
    uint32_t size;   // Entries in use.
    uint32_t depth;  // How many high tag bits all its keys share.
  };

 public:
  // The index between two changes, by value: what a loop can keep in registers.
  class View {
   public:
    // Starts loading the place where the search for `tag` begins.
    void Prefetch(uint32_t tag) const {
      const Segment segment = SegmentOf(tag);
      __builtin_prefetch(&segment.entries[tag & segment.mask]);
    }
    Cursor Find(uint32_t tag) const { return Search(tag, tag); }

   private:
    friend class KeyIndex;
    View(const Segment* directory, uint32_t depth)
        : directory_(directory), shift_(32 - depth) {}

    const Segment& SegmentOf(uint32_t tag) const {
      return directory_[static_cast<uint64_t>(tag) >> shift_];
    }
    Cursor Search(uint32_t tag, uint32_t place) const {
      const Segment segment = SegmentOf(tag);
      Cursor cursor;
      cursor.tag_ = tag;
      for (;; ++place) {
        const uint64_t entry = segment.entries[place & segment.mask];
        if (entry == 0) return cursor;
        if (entry >> 32 == tag) {
          cursor.entry_ = entry;
          cursor.place_ = place;
          return cursor;
        }
      }
    }

    const Segment* directory_;
    uint32_t shift_;
  };
  View view() const { return View(directory_.data(), depth_); }

  // Makes room for another entry of this tag, so that the next Insert of it
  // allocates nothing. If memory runs out, the index is as it was.
  void MakeRoom(uint32_t tag);

  // Adds an entry. REQUIRES: number < 2^32 - 1.
  void Insert(uint32_t tag, uint32_t number);

  // Gives the entry (tag, from) another number. Returns whether it was there.
  bool Replace(uint32_t tag, uint32_t from, uint32_t to);
  // Whether the entry (tag, number) is there.
  bool Has(uint32_t tag, uint32_t number) const;

  // Removes the entry (tag, number). REQUIRES: it is there.
  void Erase(uint32_t tag, uint32_t number);

  // Removes every entry.
  void Clear();

  int64_t size() const { return size_; }

 private:
  const Segment& SegmentOf(uint32_t tag) const { return view().SegmentOf(tag); }

  uint64_t* NewEntries(uint32_t capacity);
  // Makes room for one more among the free ones, so that FreeEntries cannot
  // fail.
  void ReserveFree(uint32_t capacity);
  void FreeEntries(uint64_t* entries, uint32_t capacity);
  void Enlarge(uint32_t tag);
  void Split(uint32_t tag);
  // Makes every directory entry of a range `segment`: of all tags that share
  // their first `depth` bits with `tag`.
  void Point(uint32_t tag, uint32_t depth, const Segment& segment);
  void Place(const Segment& segment, uint64_t entry);

  Arena* const arena_;
  uint32_t depth_ = 0;
  std::vector<Segment> directory_;  // 2^depth_ of them; segments repeat.
  std::vector<Load> loads_;         // Of each segment.
  std::vector<std::vector<uint64_t*>> free_entries_;  // By log2(capacity).
  int64_t size_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_KEY_INDEX_H_
