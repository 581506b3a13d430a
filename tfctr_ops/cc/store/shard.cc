#include "tfctr_ops/cc/store/shard.h"

#include <algorithm>
#include <cstring>

namespace tfctr {
namespace {

// Keys are worked off in groups, in three passes: start loading their places in
// the index; walk there and start loading their rows; use the rows. The loads of
// a group overlap, so the batch runs at the memory's throughput and not at its
// latency.
constexpr int64_t kGroup = 16;

constexpr uint32_t kMaxScore = 3;

void CopyFloats(const float* from, int64_t n, float* to) {
  int64_t c = 0;
  for (; c + 16 <= n; c += 16) std::memcpy(to + c, from + c, 64);
  for (; c + 4 <= n; c += 4) std::memcpy(to + c, from + c, 16);
  for (; c < n; ++c) to[c] = from[c];
}

void PrefetchRow(const std::byte* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
}

}  // namespace

Shard::Shard(const StoreOptions& options, const RowLayout& layout,
             int64_t chunk_bytes, Arena* arena)
    : options_(options),
      layout_(layout),
      index_(arena),
      rows_(layout, chunk_bytes, arena) {}

void Shard::CopyWeights(uint32_t slot, float* to) const {
  CopyFloats(RowLayout::Weights(rows_.Row(slot)), layout_.dim(), to);
}

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

void Shard::Read(const PlacedKey* keys, int64_t n, float* rows) const {
  const int64_t dim = layout_.dim();
  const int64_t read_bytes = static_cast<int64_t>(sizeof(RowHeader)) + dim * 4;
  KeyIndex::Cursor cursors[kGroup];
  for (int64_t start = 0; start < n; start += kGroup) {
    const int64_t size = std::min(kGroup, n - start);
    for (int64_t i = 0; i < size; ++i) index_.Prefetch(keys[start + i].tag);
    for (int64_t i = 0; i < size; ++i) {
      cursors[i] = index_.Find(keys[start + i].tag);
      if (cursors[i].found()) {
        PrefetchRow(rows_.Row(cursors[i].slot()), read_bytes);
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      const PlacedKey& key = keys[start + i];
      float* to = rows + key.position * dim;
      auto c = cursors[i];
      while (c.found() && !rows_.Header(c.slot())->Is(key.feature, key.id)) {
        c = index_.FindNext(c);
      }
      if (c.found() && rows_.Header(c.slot())->known) {
        CopyWeights(c.slot(), to);
      } else {
        CopyFloats(options_.default_row.data(), dim, to);
      }
    }
  }
}

int64_t Shard::Resolve(ShardBatch* batch, bool insert, float* rows) {
  const int64_t dim = layout_.dim();
  const int64_t read_bytes = static_cast<int64_t>(sizeof(RowHeader)) + dim * 4;
  const bool keeps_score = options_.eviction_policy != EvictionPolicy::kNone;
  std::vector<const PlacedKey*> absent;
  KeyIndex::Cursor cursors[kGroup];
  batch->num_distinct = 0;
  for (int64_t start = 0; start < batch->size; start += kGroup) {
    const PlacedKey* keys = batch->keys + start;
    const int64_t size = std::min(kGroup, batch->size - start);
    for (int64_t i = 0; i < size; ++i) index_.Prefetch(keys[i].tag);
    for (int64_t i = 0; i < size; ++i) {
      cursors[i] = index_.Find(keys[i].tag);
      if (cursors[i].found()) {
        PrefetchRow(rows_.Row(cursors[i].slot()), read_bytes);
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      uint32_t slot;
      if (cursors[i].found() && rows_.Header(cursors[i].slot())
                                    ->Is(keys[i].feature, keys[i].id)) {
        slot = cursors[i].slot();
      } else {
        // Not there, another key with this tag, or inserted a moment ago.
        slot = Find(keys[i]);
      }
      if (slot == kNoSlot) {
        if (!insert) {
          batch->places[start + i] = -1;
          absent.push_back(&keys[i]);
          continue;
        }
        slot = Insert(keys[i]);
      }
      const int64_t before = batch->num_distinct;
      batch->places[start + i] =
          PlaceOf(slot, batch->slots, &batch->num_distinct);
      if (batch->num_distinct > before) {
        batch->firsts[before] = static_cast<int32_t>(start + i);
        RowHeader* header = rows_.Header(slot);
        if (keeps_score && header->score < kMaxScore) ++header->score;
      }
      CopyWeights(slot, rows + keys[i].position * dim);
    }
  }
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
    CopyWeights(slot, rows + key.position * layout_.dim());
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
