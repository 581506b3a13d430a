// CountTable: a number for each of some keys, which may be many.
//
// Open addressing with linear probing: 16 bytes an entry, a quarter or more of
// them free. Thread safety: none; the shard's lock guards it.

#ifndef TFCTR_OPS_CC_STORE_COUNT_TABLE_H_
#define TFCTR_OPS_CC_STORE_COUNT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfctr {

class CountTable {
 public:
  // As it is written to disk, too.
  struct Entry {
    int64_t id;
    uint32_t feature;
    uint32_t count;  // 0 for a free entry.
  };
  static_assert(sizeof(Entry) == 16, "It is written to disk.");

  // `salt` is that of HashKey.
  explicit CountTable(uint64_t salt) : salt_(salt) {}

  // The count of a key; 0 if it has none.
  uint32_t Find(uint32_t feature, int64_t id) const;
  // REQUIRES: count > 0.
  void Set(uint32_t feature, int64_t id, uint32_t count);
  void Erase(uint32_t feature, int64_t id);
  // Frees the memory, too.
  void Clear();

  int64_t size() const { return size_; }
  int64_t allocated_bytes() const {
    return static_cast<int64_t>(entries_.capacity() * sizeof(Entry));
  }
  void AppendTo(std::vector<Entry>* entries) const {
    for (const Entry& entry : entries_) {
      if (entry.count != 0) entries->push_back(entry);
    }
  }

 private:
  size_t FirstPlace(uint32_t feature, int64_t id) const;
  // Where the key is, or where it would go. REQUIRES: there are entries.
  size_t PlaceOf(uint32_t feature, int64_t id) const;
  void Grow();

  const uint64_t salt_;
  std::vector<Entry> entries_;  // A power of two, or none.
  int64_t size_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_COUNT_TABLE_H_
