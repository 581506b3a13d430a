#include "tfctr_ops/cc/store/key_index.h"

#include <algorithm>
#include <cstring>

namespace tfctr {
namespace {

constexpr uint32_t kFirstCapacity = 64;
// 16 KiB of entries: a split stays in the first-level cache.
constexpr uint32_t kSegmentCapacity = 2048;
// Low tag bits place an entry in its segment; a directory deeper than the rest
// could not tell keys apart.
constexpr uint32_t kMaxDepth = 21;

// Fuller, and unsuccessful searches grow long (13 places on average at 0.8).
constexpr bool IsFull(uint32_t size, uint32_t capacity) {
  return size >= capacity / 5 * 4;
}

uint64_t EntryOf(uint32_t tag, uint32_t number) {
  return (static_cast<uint64_t>(tag) << 32) | (number + 1);
}

int Log2(uint32_t power_of_two) { return __builtin_ctz(power_of_two); }

}  // namespace

KeyIndex::KeyIndex(Arena* arena) : arena_(arena), free_entries_(32) {
  directory_.push_back({NewEntries(kFirstCapacity), kFirstCapacity - 1, 0});
  loads_.push_back({0, 0});
}

uint64_t* KeyIndex::NewEntries(uint32_t capacity) {
  std::vector<uint64_t*>& free = free_entries_[Log2(capacity)];
  if (free.empty()) {
    return reinterpret_cast<uint64_t*>(
        arena_->Allocate(capacity * sizeof(uint64_t)));
  }
  uint64_t* entries = free.back();
  free.pop_back();
  std::memset(entries, 0, capacity * sizeof(uint64_t));
  return entries;
}

void KeyIndex::ReserveFree(uint32_t capacity) {
  std::vector<uint64_t*>& free = free_entries_[Log2(capacity)];
  free.reserve(free.size() + 1);
}

void KeyIndex::FreeEntries(uint64_t* entries, uint32_t capacity) {
  free_entries_[Log2(capacity)].push_back(entries);
}

void KeyIndex::Place(const Segment& segment, uint64_t entry) {
  uint32_t place = static_cast<uint32_t>(entry >> 32) & segment.mask;
  while (segment.entries[place] != 0) place = (place + 1) & segment.mask;
  segment.entries[place] = entry;
  ++loads_[segment.number].size;
}

void KeyIndex::Insert(uint32_t tag, uint32_t number) {
  MakeRoom(tag);
  Place(SegmentOf(tag), EntryOf(tag, number));
  ++size_;
}

void KeyIndex::MakeRoom(uint32_t tag) {
  for (;;) {
    const Segment& segment = SegmentOf(tag);
    const Load& load = loads_[segment.number];
    const uint32_t capacity = segment.mask + 1;
    if (!IsFull(load.size, capacity)) return;
    // Keys chosen to share their tags would not come apart by splitting.
    if (capacity < kSegmentCapacity || load.depth == kMaxDepth) {
      Enlarge(tag);
    } else {
      Split(tag);
    }
  }
}

void KeyIndex::Point(uint32_t tag, uint32_t depth, const Segment& segment) {
  const uint64_t range = static_cast<uint64_t>(tag) >> (32 - depth);
  const uint64_t width = uint64_t{1} << (depth_ - depth);
  std::fill_n(directory_.begin() + static_cast<int64_t>(range * width), width,
              segment);
}

void KeyIndex::Enlarge(uint32_t tag) {
  const Segment old = SegmentOf(tag);
  const uint32_t capacity = old.mask + 1;
  ReserveFree(capacity);
  const Segment larger = {NewEntries(capacity * 2), capacity * 2 - 1,
                          old.number};
  loads_[old.number].size = 0;
  for (uint32_t i = 0; i < capacity; ++i) {
    if (old.entries[i] != 0) Place(larger, old.entries[i]);
  }
  Point(tag, loads_[old.number].depth, larger);
  FreeEntries(old.entries, capacity);
}

void KeyIndex::Split(uint32_t tag) {
  if (loads_[SegmentOf(tag).number].depth == depth_) {
    // Everything twice; no segment is touched.
    std::vector<Segment> doubled(directory_.size() * 2);
    for (size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    directory_.swap(doubled);
    ++depth_;
  }
  const Segment old = SegmentOf(tag);
  const uint32_t capacity = old.mask + 1;
  const uint32_t depth = loads_[old.number].depth + 1;
  // All that is needed first; then nothing can fail.
  ReserveFree(capacity);
  if (loads_.size() == loads_.capacity()) loads_.reserve(loads_.size() * 2);
  const Segment upper = {NewEntries(capacity), old.mask,
                         static_cast<uint32_t>(loads_.size())};
  const Segment lower = {NewEntries(capacity), old.mask, old.number};
  loads_[old.number] = {0, depth};
  loads_.push_back({0, depth});

  const uint64_t new_bit = uint64_t{1} << (32 - depth);
  Point(static_cast<uint32_t>(tag & ~new_bit), depth, lower);
  Point(static_cast<uint32_t>(tag | new_bit), depth, upper);
  for (uint32_t i = 0; i < capacity; ++i) {
    const uint64_t entry = old.entries[i];
    if (entry != 0) Place((entry >> 32) & new_bit ? upper : lower, entry);
  }
  FreeEntries(old.entries, capacity);
}

bool KeyIndex::Replace(uint32_t tag, uint32_t from, uint32_t to) {
  const Segment& segment = SegmentOf(tag);
  const uint64_t wanted = EntryOf(tag, from);
  for (uint32_t place = tag & segment.mask; segment.entries[place] != 0;
       place = (place + 1) & segment.mask) {
    if (segment.entries[place] != wanted) continue;
    segment.entries[place] = EntryOf(tag, to);
    return true;
  }
  return false;
}

bool KeyIndex::Has(uint32_t tag, uint32_t number) const {
  for (Cursor c = Find(tag); c.found(); c = FindNext(c)) {
    if (c.number() == number) return true;
  }
  return false;
}

void KeyIndex::Erase(uint32_t tag, uint32_t number) {
  const Segment segment = SegmentOf(tag);
  const uint64_t wanted = EntryOf(tag, number);
  uint32_t hole = tag & segment.mask;
  while (segment.entries[hole] != wanted) hole = (hole + 1) & segment.mask;
  // Close the hole: pull back every later entry of the run that may stand here,
  // so that searches still end at the first empty place.
  for (uint32_t next = hole;;) {
    next = (next + 1) & segment.mask;
    const uint64_t entry = segment.entries[next];
    if (entry == 0) break;
    const uint32_t home = static_cast<uint32_t>(entry >> 32) & segment.mask;
    if (((next - home) & segment.mask) >= ((next - hole) & segment.mask)) {
      segment.entries[hole] = entry;
      hole = next;
    }
  }
  segment.entries[hole] = 0;
  --loads_[segment.number].size;
  --size_;
}

void KeyIndex::Clear() {
  std::vector<bool> cleared(loads_.size(), false);
  for (const Segment& segment : directory_) {
    if (cleared[segment.number]) continue;
    cleared[segment.number] = true;
    std::memset(segment.entries, 0, (segment.mask + 1) * sizeof(uint64_t));
    loads_[segment.number].size = 0;
  }
  size_ = 0;
}

}  // namespace tfctr
