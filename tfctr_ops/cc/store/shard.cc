#include "tfctr_ops/cc/store/shard.h"

#include <algorithm>

#include "tfctr_ops/cc/store/batch.h"

namespace tfctr {
namespace {

// Keys pass through three stages, a group at a time: start loading their places
// in the index; walk there and start loading their rows; use the rows. While
// one group is used, the loads of the next two are under way, so a batch runs
// at the memory's throughput and not at its latency.
constexpr int64_t kGroup = 16;

// Sorts the keys; `occurrences`, unless it is null, tells how often each
// counts.
void KeepOneOfEach(std::vector<const PlacedKey*>* keys,
                   std::vector<int64_t>* occurrences = nullptr) {
  const auto order = [](const PlacedKey* a, const PlacedKey* b) {
    return a->id != b->id ? a->id < b->id : a->feature < b->feature;
  };
  const auto same = [](const PlacedKey* a, const PlacedKey* b) {
    return a->id == b->id && a->feature == b->feature;
  };
  std::sort(keys->begin(), keys->end(), order);
  for (size_t i = 0; occurrences != nullptr && i < keys->size(); ++i) {
    if (i == 0 || !same((*keys)[i - 1], (*keys)[i])) occurrences->push_back(0);
    occurrences->back() += (*keys)[i]->count;
  }
  keys->erase(std::unique(keys->begin(), keys->end(), same), keys->end());
}

}  // namespace

Shard::Shard(const StoreOptions& options, const RowLayout& layout,
             int64_t chunk_bytes, int64_t number, Arena* arena, SsdTier* ssd)
    : options_(options),
      layout_(layout),
      kernels_(BestRowKernels()),
      number_(number),
      ssd_(ssd),
      demotes_(ssd != nullptr),
      index_(arena),
      rows_(layout, chunk_bytes, arena),
      eviction_(options.eviction_policy, &rows_, arena) {}

uint32_t Shard::TagOf(const RowHeader& header) const {
  return IndexTag(HashKey(options_.salt, header.feature, header.id),
                  options_.shard_bits);
}

uint32_t Shard::Find(const PlacedKey& key) const {
  for (auto c = index_.Find(key.tag); c.found(); c = index_.FindNext(c)) {
    if (c.is_on_disk()) continue;
    if (rows_.Header(c.slot())->Is(key.feature, key.id)) return c.slot();
  }
  return kNoSlot;
}

template <typename Use>
void Shard::ForEachGroup(const PlacedKey* keys, int64_t n, Use use) const {
  const int64_t read_bytes =
      static_cast<int64_t>(sizeof(RowHeader)) + layout_.dim() * 4;
  FoundRow found[2][kGroup];
  const int64_t num_groups = (n + kGroup - 1) / kGroup;
  const auto end = [&](int64_t group) {
    return std::min(n, (group + 1) * kGroup);
  };
  for (int64_t g = 0; g < num_groups + 2; ++g) {
    // Again for each group, since `use` may have changed both.
    const KeyIndex::View index = index_.view();
    const RamTier::View rows = rows_.view();
    if (g < num_groups) {
      for (int64_t i = g * kGroup; i < end(g); ++i) index.Prefetch(keys[i].tag);
    }
    if (g >= 1 && g <= num_groups) {
      FoundRow* row = found[(g - 1) & 1];
      for (int64_t i = (g - 1) * kGroup; i < end(g - 1); ++i, ++row) {
        const KeyIndex::Cursor cursor = index.Find(keys[i].tag);
        *row = {kNoSlot, nullptr};
        if (cursor.found() && !cursor.is_on_disk()) {
          *row = {cursor.slot(), rows.Row(cursor.slot())};
          RowLayout::Prefetch(row->row, read_bytes);
        }
      }
    }
    if (g >= 2) {
      const int64_t start = (g - 2) * kGroup;
      const int64_t size = end(g - 2) - start;
      FoundRow* row = found[(g - 2) & 1];
      for (int64_t i = 0; i < size; ++i, ++row) {
        const PlacedKey& key = keys[start + i];
        if (row->row != nullptr &&
            RowLayout::Header(row->row)->Is(key.feature, key.id)) {
          continue;
        }
        // It is absent, has the tag of another key, or was inserted since.
        const uint32_t slot = Find(key);
        *row = {slot, slot == kNoSlot ? nullptr : rows.Row(slot)};
      }
      use(start, size, found[(g - 2) & 1]);
    }
  }
}

void Shard::Read(const PlacedKey* keys, int64_t n, float* rows,
                 std::vector<const PlacedKey*>* absent) const {
  const float* from[kGroup];
  int32_t positions[kGroup];
  ForEachGroup(keys, n, [&](int64_t start, int64_t size, FoundRow* found) {
    for (int64_t i = 0; i < size; ++i) {
      std::byte* const row = found[i].row;
      const bool known = row != nullptr && RowLayout::Header(row)->known;
      from[i] = known ? RowLayout::Weights(row) : options_.default_row.data();
      positions[i] = keys[start + i].position;
      if (row == nullptr && absent != nullptr) {
        absent->push_back(&keys[start + i]);
      }
    }
    kernels_.copy(from, positions, size, layout_.dim(), rows);
  });
}

void Shard::Resolve(ShardBatch* batch, float* rows,
                    std::vector<const PlacedKey*>* absent,
                    std::vector<int64_t>* occurrences) {
  const bool keeps_scores = eviction_.keeps_scores();
  const PlacedKey* const keys = batch->keys;
  int32_t* const places = batch->places;
  uint32_t* const slots = batch->slots;
  int32_t* const firsts = batch->firsts;
  const float* from[kGroup];
  int32_t positions[kGroup];
  int64_t num_distinct = 0;
  ForEachGroup(
      keys, batch->size, [&](int64_t start, int64_t size, FoundRow* found) {
        int64_t num_found = 0;
        for (int64_t i = 0; i < size; ++i) {
          const PlacedKey& key = keys[start + i];
          FoundRow row = found[i];
          if (row.row == nullptr && absent == nullptr) {
            // The same key may stand in this group twice.
            row.slot = Find(key);
            if (row.slot == kNoSlot) row.slot = Insert(key);
            row.row = rows_.Row(row.slot);
          }
          if (row.row == nullptr) {
            places[start + i] = -1;
            absent->push_back(&key);
            continue;
          }
          RowHeader* header = RowLayout::Header(row.row);
          const int64_t before = num_distinct;
          places[start + i] = PlaceOf(row.slot, header, slots, &num_distinct);
          if (num_distinct > before) {
            firsts[before] = static_cast<int32_t>(start + i);
            if (keeps_scores && header->score < kMaxScore) ++header->score;
          }
          from[num_found] = RowLayout::Weights(row.row);
          positions[num_found++] = key.position;
        }
        if (rows != nullptr) {
          kernels_.copy(from, positions, num_found, layout_.dim(), rows);
        }
      });
  batch->num_distinct = num_distinct;
  eviction_.Use(slots, num_distinct);
  if (absent != nullptr) KeepOneOfEach(absent, occurrences);
}

std::vector<const PlacedKey*> Shard::FindAbsent(const PlacedKey* keys,
                                                int64_t n) const {
  std::vector<const PlacedKey*> absent;
  ForEachGroup(keys, n, [&](int64_t start, int64_t size, FoundRow* found) {
    for (int64_t i = 0; i < size; ++i) {
      if (found[i].row == nullptr) absent.push_back(&keys[start + i]);
    }
  });
  KeepOneOfEach(&absent);
  return absent;
}

void Shard::InsertAbsent(ShardBatch* batch, float* rows, bool inserts) {
  for (int64_t i = 0; i < batch->size; ++i) {
    if (batch->places[i] >= 0) continue;
    const PlacedKey& key = batch->keys[i];
    uint32_t slot = Find(key);
    if (slot == kNoSlot && !inserts) {
      const float* from = options_.default_row.data();
      kernels_.copy(&from, &key.position, 1, layout_.dim(), rows);
      continue;
    }
    if (slot == kNoSlot) slot = Insert(key);
    const int64_t before = batch->num_distinct;
    batch->places[i] =
        PlaceOf(slot, rows_.Header(slot), batch->slots, &batch->num_distinct);
    if (batch->num_distinct > before) {
      batch->firsts[before] = static_cast<int32_t>(i);
    }
    const float* from = RowLayout::Weights(rows_.Row(slot));
    if (rows != nullptr) {
      kernels_.copy(&from, &key.position, 1, layout_.dim(), rows);
    }
  }
}

uint32_t Shard::Allocate() {
  const uint32_t slot = rows_.Allocate();
  if (ssd_ != nullptr) {
    if (copies_.size() <= slot) copies_.resize(slot + 1, kNowhere);
    copies_[slot] = kNowhere;
  }
  return slot;
}

uint32_t Shard::Insert(const PlacedKey& key) {
  index_.MakeRoom(key.tag);  // First: a row without an entry would be lost.
  const uint32_t slot = Allocate();
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
  eviction_.Add(slot, /*used=*/true);
  if (admission_ != nullptr) admission_->Forget(number_, key.feature, key.id);
  return slot;
}

void Shard::Release(uint32_t slot) {
  SaveIfNeeded(slot);
  const RowHeader& header = *rows_.Header(slot);
  known_ -= header.known;
  index_.Erase(TagOf(header), slot);
  if (ssd_ != nullptr && copies_[slot] != kNowhere) {
    ssd_->Drop(number_, copies_[slot], SsdTier::Purpose::kEviction);
  }
  eviction_.Remove(slot);
  rows_.Free(slot);
  ++generation_;
}

void Shard::Clear() {
  for (int64_t slot = 0; slot < rows_.num_slots(); ++slot) {
    if (rows_.Header(static_cast<uint32_t>(slot))->live) {
      Release(static_cast<uint32_t>(slot));
    }
  }
  dirty_.clear();
  eviction_.Clear();
  if (ssd_ == nullptr) return;
  index_.Clear();
  ssd_->Clear(number_);
  on_disk_only_ = 0;
}

int64_t Shard::Evict(int64_t wanted, const ShardBatch& batch) {
  constexpr size_t kAhead = 6;
  static thread_local std::vector<uint32_t> victims;
  victims.clear();
  eviction_.Choose(wanted, batch.slots, batch.num_distinct, &victims);
  int64_t freed = 0;
  for (size_t i = 0; i < victims.size(); ++i) {
    if (i + 2 * kAhead < victims.size()) {
      const uint32_t later = victims[i + 2 * kAhead];
      RowLayout::Prefetch(rows_.Row(later), layout_.row_bytes());
      if (demotes_) __builtin_prefetch(&copies_[later]);
    }
    if (i + kAhead < victims.size()) {
      const uint32_t soon = victims[i + kAhead];
      index_.Prefetch(TagOf(*rows_.Header(soon)));
      if (demotes_ && copies_[soon] != kNowhere) {
        ssd_->PrefetchDrop(number_, copies_[soon]);
      }
    }
    if (!Demote(victims[i])) break;
    ++freed;
  }
  evicted_ += freed;
  return freed;
}

}  // namespace tfctr
