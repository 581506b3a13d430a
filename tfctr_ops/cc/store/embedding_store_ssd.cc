// What an EmbeddingStore does with its SSD tier: bring rows up, and keep the
// disk in order.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

// A prefetch takes up to this share of the memory budget.
constexpr int64_t kPrefetchShare = 2;

}  // namespace

void EmbeddingStore::StartFetch(int64_t s,
                                const std::vector<const PlacedKey*>& absent,
                                ShardFetch* fetch) {
  for (const PlacedKey* key : absent) {
    shard(s).FindOnDisk(*key, &fetch->copies);
  }
  if (fetch->copies.empty()) return;
  const int64_t row_bytes = layout_.row_bytes();
  const auto n = static_cast<int64_t>(fetch->copies.size());
  fetch->memory.reset(new std::byte[static_cast<size_t>(n * row_bytes)]);
  fetch->reads.reserve(fetch->copies.size());
  for (int64_t i = 0; i < n; ++i) {
    Shard::DiskCopy& copy = fetch->copies[static_cast<size_t>(i)];
    copy.row = fetch->memory.get() + i * row_bytes;
    SsdTier::Read read = ssd_->Prepare(s, copy.location, copy.row);
    if (read.segment != nullptr) fetch->reads.push_back(std::move(read));
  }
}

Status EmbeddingStore::FinishFetch(std::vector<ShardFetch>* fetches,
                                   Executor* executor) {
  std::vector<Status> of_shard(fetches->size());
  executor->ParallelFor(static_cast<int64_t>(fetches->size()), [&](int64_t s) {
    const auto i = static_cast<size_t>(s);
    of_shard[i] = ssd_->ReadCached(&(*fetches)[i].reads);
  });
  std::vector<SsdTier::Read> left;
  for (size_t s = 0; s < fetches->size(); ++s) {
    if (!of_shard[s].ok()) return of_shard[s];
    std::vector<SsdTier::Read>& reads = (*fetches)[s].reads;
    std::move(reads.begin(), reads.end(), std::back_inserter(left));
    reads.clear();
  }
  return ssd_->ReadAll(&left);
}

Status EmbeddingStore::WaitForFetch(std::vector<ShardFetch>* fetches,
                                    Executor* executor) {
  const bool reads =
      std::any_of(fetches->begin(), fetches->end(),
                  [](const ShardFetch& fetch) { return !fetch.reads.empty(); });
  if (!reads) return Status::Ok();
  const auto start = std::chrono::steady_clock::now();
  Status status = FinishFetch(fetches, executor);
  ++stalled_lookups_;
  stalled_nanoseconds_ +=
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start)
          .count();
  return status;
}

int64_t EmbeddingStore::PromoteAll(int64_t s, const ShardFetch& fetch,
                                   bool used) {
  int64_t promoted = 0;
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < fetch.copies.size(); ++i) {
    if (i + kAhead < fetch.copies.size()) {
      shard(s).PrefetchKey(*fetch.copies[i + kAhead].key);
    }
    const Shard::DiskCopy& copy = fetch.copies[i];
    if (Shard::IsCopyOf(copy)) promoted += shard(s).Promote(copy, used);
  }
  return promoted;
}

Status EmbeddingStore::BringBack(const ResolvedBatch& batch,
                                 Executor* executor) {
  if (ssd_ == nullptr) return Status::Ok();
  std::vector<ShardFetch> fetches(shards_.size());
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const ShardBatch part = batch.OfShard(s);
    if (batch.generations[static_cast<size_t>(s)] == shard(s).generation()) {
      return;
    }
    // The first of each distinct row, or, if they were not resolved, every key.
    const bool is_resolved = part.num_distinct > 0;
    const int64_t n = is_resolved ? part.num_distinct : part.size;
    std::vector<const PlacedKey*> absent;
    for (int64_t i = 0; i < n; ++i) {
      const PlacedKey& key = part.keys[is_resolved ? part.firsts[i] : i];
      if (is_resolved &&
          shard(s).rows().Header(part.slots[i])->Is(key.feature, key.id)) {
        continue;
      }
      if (shard(s).Find(key) == Shard::kNoSlot) absent.push_back(&key);
    }
    StartFetch(s, absent, &fetches[static_cast<size_t>(s)]);
  });
  Status status = FinishFetch(&fetches, executor);
  if (!status.ok()) return status;
  for (int64_t s = 0; s < num_shards(); ++s) {
    const ShardFetch& fetch = fetches[static_cast<size_t>(s)];
    budget_->ForceReserve(PromoteAll(s, fetch, /*used=*/true) *
                          layout_.row_bytes());
  }
  return Status::Ok();
}

void EmbeddingStore::SettleDebt(Executor* executor) {
  if (ssd_ == nullptr || !budget_->is_limited()) return;
  const int64_t row_bytes = layout_.row_bytes();
  const int64_t debt = budget_->used_bytes() - budget_->limit_bytes();
  if (debt <= 0) return;
  const int64_t owed = (debt + row_bytes - 1) / row_bytes;
  int64_t rows = 0;
  for (const auto& shard : shards_) rows += shard->rows().size();
  if (rows == 0) return;
  // Each shard by its share of the rows, rounded up.
  std::atomic<int64_t> evicted{0};
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const int64_t own = shard(s).rows().size();
    const int64_t wanted = static_cast<int64_t>(static_cast<double>(owed) *
                                                static_cast<double>(own) /
                                                static_cast<double>(rows)) +
                           1;
    evicted += shard(s).Evict(std::min(own, wanted), ShardBatch{});
  });
  budget_->Release(evicted * row_bytes);
}

Status EmbeddingStore::Prefetch(const KeyBatch& keys, Executor* executor,
                                bool unless_cached) {
  if (ssd_ == nullptr) return Status::Ok();
  Status status = ssd_->error();
  if (!status.ok()) return status;
  if (unless_cached && ssd_->reads_from_cache()) return Status::Ok();
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  // More would push out what the next steps need.
  const int64_t most = budget_->is_limited()
                           ? budget_->limit_bytes() / layout_.row_bytes() /
                                 kPrefetchShare / num_shards()
                           : keys.n;
  std::vector<ShardFetch> fetches(shards_.size());
  ForEachShard(keys.n, executor, [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    std::vector<const PlacedKey*> absent =
        shard(s).FindAbsent(part.keys, part.size);
    if (static_cast<int64_t>(absent.size()) > most) {
      absent.resize(static_cast<size_t>(most));
    }
    StartFetch(s, absent, &fetches[static_cast<size_t>(s)]);
  });
  status = FinishFetch(&fetches, executor);
  if (!status.ok()) return status;
  const int64_t row_bytes = layout_.row_bytes();
  ForEachShard(keys.n, executor, [&](int64_t s) {
    const ShardFetch& fetch = fetches[static_cast<size_t>(s)];
    const auto wanted = static_cast<int64_t>(fetch.copies.size());
    if (wanted == 0) return;
    const int64_t granted = budget_->ReserveUpTo(wanted, row_bytes);
    const int64_t room =
        granted + shard(s).Evict(wanted - granted, ShardBatch{});
    // Without room, what is left stays on disk until it is needed.
    const int64_t used =
        room < wanted ? 0 : PromoteAll(s, fetch, /*used=*/false);
    budget_->Release((room - used) * row_bytes);
  });
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

Status EmbeddingStore::CheckDisk() {
  if (ssd_ == nullptr) return Status::Ok();
  if (ssd_->is_full()) {
    // The batches since could not write everything they wanted to: their rows
    // are above the memory budget.
    background_->Finish();
    ssd_->FinishWrites();
    for (int64_t s = 0; s < num_shards(); ++s)
      CompactShard(ssd_.get(), s, /*any=*/true);
    ssd_->FinishWrites();
    const bool fits = !budget_->is_limited() ||
                      budget_->used_bytes() <= budget_->limit_bytes();
    if (!fits && !ssd_->HasRoom() && ssd_->error().ok()) {
      return Status::ResourceExhausted(
          "Table '" + options_.name +
          "' is full: ssd_limit=" + std::to_string(ssd_->limit_bytes()) +
          " bytes are used up in '" + options_.ssd.directory +
          "'. No row was lost. Possible fixes: 1) raise `ssd_limit`; 2) raise "
          "`ram`; 3) lower `dim` or choose an optimizer with fewer slots.");
    }
    ssd_->ClearFull();
  }
  return ssd_->error();
}

bool EmbeddingStore::CompactShard(SsdTier* tier, int64_t s, bool any) {
  const SegmentLayout& layout = tier->layout();
  size_t place = 0;
  std::shared_ptr<Segment> segment;
  int64_t num_rows;
  {
    std::lock_guard<std::mutex> lock(shard(s).mutex());
    segment = tier->FindStale(s, any, &place);
    if (segment == nullptr) return false;
    num_rows = segment->num_rows();
  }
  if (!tier->error().ok()) return false;

  constexpr int64_t kPagesAtOnce = 16;
  constexpr int64_t kAhead = 8;
  const int64_t rows_at_once = kPagesAtOnce * layout.rows_per_page;
  const AlignedBytes pages(kPagesAtOnce * layout.page_bytes);
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    const int64_t end = std::min(num_rows, first + rows_at_once);
    const int64_t first_page = first / layout.rows_per_page;
    const int64_t num_pages =
        (end - first + layout.rows_per_page - 1) / layout.rows_per_page;
    Status status =
        tier->ReadPages(segment.get(), first_page, num_pages, pages.data());
    if (!status.ok()) {
      tier->SetError(std::move(status));
      return false;
    }
    std::lock_guard<std::mutex> lock(shard(s).mutex());
    // The shard may have been cleared since.
    if (tier->segments(s).size() <= place ||
        tier->segments(s)[place] != segment) {
      return true;
    }
    for (int64_t r = first; r < end; ++r) {
      if (closes_) return false;
      if (r + kAhead < end && segment->is_live(r + kAhead)) {
        shard(s).PrefetchRow(pages.data() + layout.InPages(r + kAhead - first));
      }
      if (!segment->is_live(r)) continue;
      std::byte* row = pages.data() + layout.InPages(r - first);
      if (!shard(s).Relocate(row, tier->LocationOf(place, r))) return false;
    }
  }
  return true;
}

void EmbeddingStore::FinishBackground() {
  if (ssd_ == nullptr) return;
  background_->Finish();
  ssd_->FinishWrites();
}

}  // namespace tfctr
