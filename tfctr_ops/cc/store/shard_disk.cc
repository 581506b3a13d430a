// The rows of a shard that are on disk, and the copies there of those in
// memory.

#include <algorithm>
#include <cstring>
#include <utility>

#include "tfctr_ops/cc/store/shard.h"

namespace tfctr {

bool Shard::WriteCopy(uint32_t slot) {
  RowHeader* header = rows_.Header(slot);
  const auto purpose = saves_ && IsOfSnapshot(*header)
                           ? SsdTier::Purpose::kSnapshot
                           : SsdTier::Purpose::kEviction;
  Location location;
  if (!ssd_->Append(number_, rows_.Row(slot), purpose, &location)) return false;
  if (copies_[slot] != kNowhere) ssd_->Drop(number_, copies_[slot], purpose);
  copies_[slot] = location;
  header->dirty = 0;
  return true;
}

bool Shard::Demote(uint32_t slot) {
  const RowHeader& header = *rows_.Header(slot);
  // What was never updated can be brought back from its key.
  if (!demotes_ || !header.known) {
    if (admission_ != nullptr && !header.known) {
      admission_->Remember(number_, header.feature, header.id);
    }
    Release(slot);
    return true;
  }
  if ((header.dirty || copies_[slot] == kNowhere) && !WriteCopy(slot)) {
    return false;
  }
  index_.Replace(TagOf(header), slot, copies_[slot] | KeyIndex::kOnDisk);
  --known_;
  ++on_disk_only_;
  eviction_.Remove(slot);
  rows_.Free(slot);
  ++generation_;
  return true;
}

void Shard::FindOnDisk(const PlacedKey& key,
                       std::vector<DiskCopy>* copies) const {
  for (auto c = index_.Find(key.tag); c.found(); c = index_.FindNext(c)) {
    if (!c.is_on_disk()) continue;
    copies->push_back({&key, c.location(), nullptr,
                       ssd_->SegmentNumber(number_, c.location())});
  }
}

bool Shard::Promote(const DiskCopy& copy, bool used) {
  if (ssd_->SegmentNumber(number_, copy.location) != copy.segment) return false;
  const uint32_t number = copy.location | KeyIndex::kOnDisk;
  const uint32_t slot = Allocate();
  if (!index_.Replace(copy.key->tag, number, slot)) {
    rows_.Free(slot);
    return false;
  }
  std::byte* row = rows_.Row(slot);
  std::memcpy(row, copy.row, static_cast<size_t>(layout_.row_bytes()));
  eviction_.Add(slot, used);
  copies_[slot] = copy.location;
  ++known_;
  --on_disk_only_;
  return true;
}

bool Shard::Relocate(const std::byte* row, Location location) {
  const RowHeader& header = *RowLayout::Header(const_cast<std::byte*>(row));
  const uint32_t tag = TagOf(header);
  uint32_t slot = kNoSlot;
  if (!index_.Has(tag, location | KeyIndex::kOnDisk)) {
    const PlacedKey key = {header.id, header.feature, tag, 0, 0};
    slot = Find(key);
    // The row in memory is newer: it will be written again anyway.
    if (rows_.Header(slot)->dirty) {
      copies_[slot] = kNowhere;
      const bool of_snapshot = saves_ && IsOfSnapshot(*rows_.Header(slot));
      ssd_->Drop(number_, location,
                 of_snapshot ? SsdTier::Purpose::kSnapshot
                             : SsdTier::Purpose::kCompaction);
      return true;
    }
  }
  Location moved;
  if (!ssd_->Append(number_, row, SsdTier::Purpose::kCompaction, &moved)) {
    return false;
  }
  if (slot == kNoSlot) {
    index_.Replace(tag, location | KeyIndex::kOnDisk,
                   moved | KeyIndex::kOnDisk);
  } else {
    copies_[slot] = moved;
  }
  ssd_->Drop(number_, location, SsdTier::Purpose::kCompaction);
  return true;
}

bool Shard::IsOnDiskOnly(const std::byte* row, Location location) const {
  const RowHeader& header = *RowLayout::Header(const_cast<std::byte*>(row));
  return index_.Has(TagOf(header), location | KeyIndex::kOnDisk);
}

void Shard::ReleaseOnDisk(uint32_t feature, int64_t id, Location location) {
  RowHeader header = {};
  header.feature = feature & 0xffffffU;
  header.id = id;
  index_.Erase(TagOf(header), location | KeyIndex::kOnDisk);
  ssd_->Drop(number_, location, SsdTier::Purpose::kEviction);
  --on_disk_only_;
  ++generation_;
}

std::byte* Shard::MakeKnown(uint32_t slot) {
  SaveIfNeeded(slot);
  RowHeader* header = rows_.Header(slot);
  known_ += !header->known;
  header->known = 1;
  if (lists_dirty_ && header->dirty == 0) dirty_.push_back(slot);
  header->dirty = mark_ & 3;
  return rows_.Row(slot);
}

void Shard::CountChanged(int64_t newly_known, const uint32_t* slots,
                         const int32_t* newly_dirty, int64_t num_newly_dirty) {
  known_ += newly_known;
  if (!lists_dirty_) return;
  for (int64_t i = 0; i < num_newly_dirty; ++i) {
    dirty_.push_back(slots[newly_dirty[i]]);
  }
  // Rows that were written and changed again stand in it twice.
  if (static_cast<int64_t>(dirty_.size()) > rows_.num_slots() / 2 + 1024) {
    lists_dirty_ = false;
    dirty_ = {};
  }
}

void Shard::KeepCopies(SsdTier* ssd) {
  ssd_ = ssd;
  copies_.assign(static_cast<size_t>(rows_.num_slots()), kNowhere);
}

void Shard::BeginSnapshot() {
  saves_ = true;
  save_failed_ = false;
  saved_all_ = false;
  scans_ = !lists_dirty_;
  next_to_save_ = 0;
  to_save_ = std::move(dirty_);
  dirty_ = {};
  lists_dirty_ = true;
  mark_ = 3 - mark_;
}

void Shard::Save(uint32_t slot) {
  // Without its copy the snapshot is worth nothing, but the training is.
  if (!WriteCopy(slot)) {
    save_failed_ = true;
    rows_.Header(slot)->dirty = mark_ & 3;
    lists_dirty_ = false;
    dirty_ = {};
  }
}

bool Shard::SaveSome() {
  constexpr int64_t kRowsAtOnce = 128;
  constexpr int64_t kSlotsAtOnce = 8 * kRowsAtOnce;
  const int64_t end =
      scans_ ? rows_.num_slots() : static_cast<int64_t>(to_save_.size());
  const int64_t stop = std::min(end, next_to_save_ + kSlotsAtOnce);
  const RamTier::View rows = rows_.view();
  constexpr int64_t kAhead = 8;
  const auto slot_at = [&](int64_t i) {
    return scans_ ? static_cast<uint32_t>(i) : to_save_[static_cast<size_t>(i)];
  };
  for (int64_t saved = 0; next_to_save_ < stop && saved < kRowsAtOnce;
       ++next_to_save_) {
    if (next_to_save_ + kAhead < stop) {
      RowLayout::Prefetch(rows.Row(slot_at(next_to_save_ + kAhead)),
                          layout_.row_bytes());
    }
    const uint32_t slot = slot_at(next_to_save_);
    const RowHeader& header = *rows_.Header(slot);
    if (!header.live || !header.known || !IsOfSnapshot(header)) continue;
    Save(slot);
    ++saved;
  }
  saved_all_ = next_to_save_ >= end && !save_failed_;
  return next_to_save_ < end && !save_failed_;
}

bool Shard::EndSnapshot() {
  saves_ = false;
  to_save_ = {};
  // Rows that were not saved still have the old mark, which the next snapshot
  // would take for its own new one.
  for (int64_t slot = 0; !saved_all_ && slot < rows_.num_slots(); ++slot) {
    RowHeader* header = rows_.Header(static_cast<uint32_t>(slot));
    if (header->dirty != 0) header->dirty = mark_ & 3;
  }
  if (!saved_all_) {
    lists_dirty_ = false;
    dirty_ = {};
  }
  return !save_failed_;
}

}  // namespace tfctr
