#include "tfctr_ops/cc/store/count_table.h"

#include <algorithm>
#include <utility>

#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

constexpr size_t kFirstCapacity = 16;

}  // namespace

size_t CountTable::FirstPlace(uint32_t feature, int64_t id) const {
  // The low bits: the high ones are equal in all keys of a shard.
  return static_cast<size_t>(HashKey(salt_, feature, id)) &
         (entries_.size() - 1);
}

size_t CountTable::PlaceOf(uint32_t feature, int64_t id) const {
  size_t place = FirstPlace(feature, id);
  while (entries_[place].count != 0 &&
         (entries_[place].id != id || entries_[place].feature != feature)) {
    place = (place + 1) & (entries_.size() - 1);
  }
  return place;
}

uint32_t CountTable::Find(uint32_t feature, int64_t id) const {
  return entries_.empty() ? 0 : entries_[PlaceOf(feature, id)].count;
}

void CountTable::Set(uint32_t feature, int64_t id, uint32_t count) {
  if ((static_cast<size_t>(size_) + 1) * 4 > entries_.size() * 3) Grow();
  Entry& entry = entries_[PlaceOf(feature, id)];
  size_ += entry.count == 0;
  entry = {id, feature, count};
}

void CountTable::Erase(uint32_t feature, int64_t id) {
  if (entries_.empty()) return;
  const size_t mask = entries_.size() - 1;
  size_t hole = PlaceOf(feature, id);
  if (entries_[hole].count == 0) return;
  // What a search would not find behind the hole moves into it.
  for (size_t place = (hole + 1) & mask; entries_[place].count != 0;
       place = (place + 1) & mask) {
    const Entry& entry = entries_[place];
    const size_t first = FirstPlace(entry.feature, entry.id);
    if (((place - first) & mask) < ((place - hole) & mask)) continue;
    entries_[hole] = entry;
    hole = place;
  }
  entries_[hole] = {};
  --size_;
}

void CountTable::Clear() {
  std::vector<Entry>().swap(entries_);
  size_ = 0;
}

void CountTable::Grow() {
  const size_t capacity = std::max(kFirstCapacity, entries_.size() * 2);
  std::vector<Entry> before(capacity);
  std::swap(before, entries_);
  for (const Entry& entry : before) {
    if (entry.count != 0) entries_[PlaceOf(entry.feature, entry.id)] = entry;
  }
}

}  // namespace tfctr
