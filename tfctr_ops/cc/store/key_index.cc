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

int Log2(uint32_t power_of_two) { return __builtin_ctz(power_of_two); }

}  // namespace

KeyIndex::KeyIndex(Arena* arena) : arena_(arena), free_entries_(32) {
  directory_.push_back(NewSegment(kFirstCapacity, 0));
}

KeyIndex::Segment* KeyIndex::NewSegment(uint32_t capacity, uint32_t depth) {
  auto* segment = reinterpret_cast<Segment*>(arena_->Allocate(sizeof(Segment)));
  *segment = {capacity - 1, 0, depth, NewEntries(capacity)};
  return segment;
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

void KeyIndex::Place(Segment* segment, uint64_t entry) {
  uint32_t place = static_cast<uint32_t>(entry >> 32) & segment->mask;
  while (segment->entries[place] != 0) place = (place + 1) & segment->mask;
  segment->entries[place] = entry;
  ++segment->size;
}

void KeyIndex::Insert(uint32_t tag, uint32_t slot) {
  MakeRoom(tag);
  Place(SegmentOf(tag), (static_cast<uint64_t>(tag) << 32) | (slot + 1));
  ++size_;
}

void KeyIndex::MakeRoom(uint32_t tag) {
  Segment* segment = SegmentOf(tag);
  while (IsFull(segment->size, segment->mask + 1)) {
    // Keys chosen to share their tags would not come apart by splitting.
    if (segment->mask + 1 < kSegmentCapacity || segment->depth == kMaxDepth) {
      Enlarge(segment);
    } else {
      Split(segment, tag);
      segment = SegmentOf(tag);
    }
  }
}

void KeyIndex::Enlarge(Segment* segment) {
  const uint32_t capacity = segment->mask + 1;
  uint64_t* old_entries = segment->entries;
  free_entries_[Log2(capacity)].reserve(free_entries_[Log2(capacity)].size() +
                                        1);
  segment->entries = NewEntries(capacity * 2);
  segment->mask = capacity * 2 - 1;
  segment->size = 0;
  for (uint32_t i = 0; i < capacity; ++i) {
    if (old_entries[i] != 0) Place(segment, old_entries[i]);
  }
  free_entries_[Log2(capacity)].push_back(old_entries);
}

void KeyIndex::Split(Segment* segment, uint32_t tag) {
  if (segment->depth == depth_) {
    // Every pointer twice; no segment is touched.
    std::vector<Segment*> doubled(directory_.size() * 2);
    for (size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    directory_.swap(doubled);
    ++depth_;
  }
  const uint32_t capacity = segment->mask + 1;
  const uint32_t depth = segment->depth + 1;
  uint64_t* old_entries = segment->entries;
  // All that is needed first; then nothing can fail.
  free_entries_[Log2(capacity)].reserve(free_entries_[Log2(capacity)].size() +
                                        1);
  Segment* upper = NewSegment(capacity, depth);
  segment->entries = NewEntries(capacity);
  segment->depth = depth;
  segment->size = 0;

  // `segment` keeps the half of its range whose new bit is 0.
  const uint64_t range = static_cast<uint64_t>(tag) >> (32 - (depth - 1));
  const uint64_t width = uint64_t{1} << (depth_ - depth);
  const uint64_t first = (range * 2 + 1) * width;
  std::fill_n(directory_.begin() + static_cast<int64_t>(first), width, upper);

  for (uint32_t i = 0; i < capacity; ++i) {
    const uint64_t entry = old_entries[i];
    if (entry == 0) continue;
    const bool goes_up = (entry >> (64 - depth)) & 1;
    Place(goes_up ? upper : segment, entry);
  }
  free_entries_[Log2(capacity)].push_back(old_entries);
}

void KeyIndex::Erase(uint32_t tag, uint32_t slot) {
  Segment* segment = SegmentOf(tag);
  const uint64_t wanted = (static_cast<uint64_t>(tag) << 32) | (slot + 1);
  uint32_t hole = tag & segment->mask;
  while (segment->entries[hole] != wanted) hole = (hole + 1) & segment->mask;
  // Close the hole: pull back every later entry of the run that may stand here,
  // so that searches still end at the first empty place.
  for (uint32_t next = hole;;) {
    next = (next + 1) & segment->mask;
    const uint64_t entry = segment->entries[next];
    if (entry == 0) break;
    const uint32_t home = static_cast<uint32_t>(entry >> 32) & segment->mask;
    if (((next - home) & segment->mask) >= ((next - hole) & segment->mask)) {
      segment->entries[hole] = entry;
      hole = next;
    }
  }
  segment->entries[hole] = 0;
  --segment->size;
  --size_;
}

}  // namespace tfctr
