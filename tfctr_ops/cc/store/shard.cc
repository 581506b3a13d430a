#include "tfctr_ops/cc/store/shard.h"

#include <algorithm>

namespace tfctr {
namespace {

// Keys pass through three stages, a group at a time: start loading their places
// in the index; walk there and start loading their rows; use the rows. While one
// group is used, the loads of the next two are under way, so a batch runs at the
// memory's throughput and not at its latency.
constexpr int64_t kGroup = 16;

constexpr uint32_t kMaxScore = 3;

void PrefetchRow(const std::byte* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
  __builtin_prefetch(row + bytes - 1);  // Rows start anywhere in a cache line.
}

}  // namespace

Shard::Shard(const StoreOptions& options, const RowLayout& layout,
             int64_t chunk_bytes, Arena* arena)
    : options_(options),
      layout_(layout),
      kernels_(BestRowKernels()),
      index_(arena),
      rows_(layout, chunk_bytes, arena) {}

uint32_t Shard::TagOf(const RowHeader& header) const {
  return IndexTag(HashKey(options_.salt(), header.feature, header.id),
                  options_.shard_bits);
}

uint32_t Shard::Find(const PlacedKey& key) const {
  for (auto c = index_.Find(key.tag); c.found(); c = index_.FindNext(c)) {
    if (rows_.Header(c.slot())->Is(key.feature, key.id)) return c.slot();
  }
  return kNoSlot;
}

template <typename Use>
void Shard::ForEachGroup(const PlacedKey* keys, int64_t n, Use use) const {
  const int64_t read_bytes =
      static_cast<int64_t>(sizeof(RowHeader)) + layout_.dim() * 4;
  KeyIndex::Cursor cursors[2][kGroup];
  uint32_t slots[kGroup];
  const int64_t num_groups = (n + kGroup - 1) / kGroup;
  const auto end = [&](int64_t group) {
    return std::min(n, (group + 1) * kGroup);
  };
  for (int64_t g = 0; g < num_groups + 2; ++g) {
    if (g < num_groups) {
      for (int64_t i = g * kGroup; i < end(g); ++i) index_.Prefetch(keys[i].tag);
    }
    if (g >= 1 && g <= num_groups) {
      KeyIndex::Cursor* cursor = cursors[(g - 1) & 1];
      for (int64_t i = (g - 1) * kGroup; i < end(g - 1); ++i, ++cursor) {
        *cursor = index_.Find(keys[i].tag);
        if (cursor->found()) PrefetchRow(rows_.Row(cursor->slot()), read_bytes);
      }
    }
    if (g >= 2) {
      const int64_t start = (g - 2) * kGroup;
      const int64_t size = end(g - 2) - start;
      const KeyIndex::Cursor* cursor = cursors[(g - 2) & 1];
      for (int64_t i = 0; i < size; ++i, ++cursor) {
        const PlacedKey& key = keys[start + i];
        const bool is_key =
            cursor->found() &&
            rows_.Header(cursor->slot())->Is(key.feature, key.id);
        // Else it is absent, has the tag of another key, or was inserted since.
        slots[i] = is_key ? cursor->slot() : Find(key);
      }
      use(start, size, slots);
    }
  }
}

void Shard::Read(const PlacedKey* keys, int64_t n, float* rows) const {
  const float* from[kGroup];
  int32_t positions[kGroup];
  ForEachGroup(keys, n, [&](int64_t start, int64_t size, uint32_t* slots) {
    for (int64_t i = 0; i < size; ++i) {
      const bool known = slots[i] != kNoSlot && rows_.Header(slots[i])->known;
      from[i] = known ? RowLayout::Weights(rows_.Row(slots[i]))
                      : options_.default_row.data();
      positions[i] = keys[start + i].position;
    }
    kernels_.copy(from, positions, size, layout_.dim(), rows);
  });
}

int64_t Shard::Resolve(ShardBatch* batch, bool insert, float* rows) {
  const bool keeps_score = options_.eviction_policy != EvictionPolicy::kNone;
  const PlacedKey* const keys = batch->keys;
  std::vector<const PlacedKey*> absent;
  const float* from[kGroup];
  int32_t positions[kGroup];
  int64_t num_distinct = 0;
  ForEachGroup(keys, batch->size, [&](int64_t start, int64_t size,
                                      uint32_t* slots) {
    int64_t num_found = 0;
    for (int64_t i = start; i < start + size; ++i) {
      uint32_t slot = slots[i - start];
      if (slot == kNoSlot && insert) {
        // The same key may stand in this group twice.
        slot = Find(keys[i]);
        if (slot == kNoSlot) slot = Insert(keys[i]);
      }
      if (slot == kNoSlot) {
        batch->places[i] = -1;
        absent.push_back(&keys[i]);
        continue;
      }
      const int64_t before = num_distinct;
      batch->places[i] = PlaceOf(slot, batch->slots, &num_distinct);
      if (num_distinct > before) {
        batch->firsts[before] = static_cast<int32_t>(i);
        RowHeader* header = rows_.Header(slot);
        if (keeps_score && header->score < kMaxScore) ++header->score;
      }
      from[num_found] = RowLayout::Weights(rows_.Row(slot));
      positions[num_found++] = keys[i].position;
    }
    kernels_.copy(from, positions, num_found, layout_.dim(), rows);
  });
  batch->num_distinct = num_distinct;
  if (absent.empty()) return 0;
  const auto order = [](const PlacedKey* a, const PlacedKey* b) {
    return a->id != b->id ? a->id < b->id : a->feature < b->feature;
  };
  const auto same = [](const PlacedKey* a, const PlacedKey* b) {
    return a->id == b->id && a->feature == b->feature;
  };
  std::sort(absent.begin(), absent.end(), order);
  return std::unique(absent.begin(), absent.end(), same) - absent.begin();
}

void Shard::InsertAbsent(ShardBatch* batch, float* rows) {
  for (int64_t i = 0; i < batch->size; ++i) {
    if (batch->places[i] >= 0) continue;
    const PlacedKey& key = batch->keys[i];
    uint32_t slot = Find(key);
    if (slot == kNoSlot) slot = Insert(key);
    const int64_t before = batch->num_distinct;
    batch->places[i] = PlaceOf(slot, batch->slots, &batch->num_distinct);
    if (batch->num_distinct > before) {
      batch->firsts[before] = static_cast<int32_t>(i);
    }
    const float* from = RowLayout::Weights(rows_.Row(slot));
    kernels_.copy(&from, &key.position, 1, layout_.dim(), rows);
  }
}

uint32_t Shard::Insert(const PlacedKey& key) {
  const uint32_t slot = rows_.Allocate();
  std::byte* row = rows_.Row(slot);
  RowHeader header = {};
  header.id = key.id;
  header.feature = key.feature;
  header.live = 1;
  *RowLayout::Header(row) = header;
  float* weights = RowLayout::Weights(row);
  options_.initializer.Fill(options_.feature_seeds[key.feature], key.id,
                            layout_.dim(), weights);
  options_.optimizer.InitializeSlots(layout_.dim(), weights + layout_.dim());
  index_.Insert(key.tag, slot);
  return slot;
}

void Shard::Release(uint32_t slot) {
  const RowHeader& header = *rows_.Header(slot);
  known_ -= header.known;
  index_.Erase(TagOf(header), slot);
  rows_.Free(slot);
  ++generation_;
}

bool Shard::Remove(const PlacedKey& key) {
  const uint32_t slot = Find(key);
  if (slot == kNoSlot) return false;
  Release(slot);
  return true;
}

void Shard::Clear() {
  for (int64_t slot = 0; slot < rows_.num_slots(); ++slot) {
    if (rows_.Header(slot)->live) Release(static_cast<uint32_t>(slot));
  }
}

int64_t Shard::Evict(int64_t wanted, const ShardBatch& batch) {
  const auto is_in_batch = [&](int64_t slot, const RowHeader& header) {
    return header.mark < batch.num_distinct &&
           batch.slots[header.mark] == slot;
  };
  int64_t freed = 0;
  // A row of the highest score survives as many rounds as its score; after one
  // round more, only rows of the batch are left.
  const int64_t max_looks = rows_.num_slots() * (kMaxScore + 1);
  for (int64_t look = 0; look < max_looks && freed < wanted; ++look) {
    const int64_t slot = hand_;
    hand_ = (hand_ + 1) % rows_.num_slots();
    RowHeader* header = rows_.Header(static_cast<uint32_t>(slot));
    if (!header->live || is_in_batch(slot, *header)) continue;
    if (header->score > 0) {
      --header->score;
    } else {
      Release(static_cast<uint32_t>(slot));
      ++freed;
    }
  }
  evicted_ += freed;
  return freed;
}

}  // namespace tfctr
