// Whole rows out of and into the store.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

constexpr int64_t kMaxStep = std::numeric_limits<uint32_t>::max();
// Rows that an import takes at once: they are in memory together.
constexpr int64_t kImportRows = 1 << 16;
// Pages that an export reads at once.
constexpr int64_t kExportPages = 64;

void CopyRow(std::byte* row, int64_t num_floats, int64_t i, RowArrays* out) {
  const RowHeader& header = *RowLayout::Header(row);
  if (out->ids != nullptr) {
    out->ids[i] = header.id;
    out->features[i] = static_cast<int32_t>(header.feature);
  }
  out->last_steps[i] = header.last_step;
  out->counts[i] = header.count;
  std::copy_n(RowLayout::Weights(row), num_floats,
              out->floats + i * num_floats);
}

}  // namespace

Status EmbeddingStore::Export(
    Executor* executor,
    const std::function<Status(int64_t n, RowArrays*)>& allocate) {
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  Status status = FlushLocked(executor);
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();

  // Where each shard's rows go.
  std::vector<int64_t> offsets = {0};
  for (const auto& shard : shards_) {
    offsets.push_back(offsets.back() + shard->known());
  }

  RowArrays out = {};
  status = allocate(offsets.back(), &out);
  if (!status.ok()) return status;
  const int64_t num_floats = layout_.num_floats();
  std::mutex mutex;
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const RamTier& tier = shard(s).rows();
    int64_t i = offsets[static_cast<size_t>(s)];
    for (int64_t slot = 0; slot < tier.num_slots(); ++slot) {
      std::byte* row = tier.Row(static_cast<uint32_t>(slot));
      const RowHeader& header = *RowLayout::Header(row);
      if (!header.live || !header.known) continue;
      CopyRow(row, num_floats, i++, &out);
    }
    if (ssd_ == nullptr) return;
    Status from_disk = ExportFromDisk(s, i, &out);
    std::lock_guard<std::mutex> lock(mutex);
    if (status.ok()) status = std::move(from_disk);
  });
  return status;
}

Status EmbeddingStore::ExportFromDisk(int64_t s, int64_t i, RowArrays* out) {
  const SegmentLayout& layout = ssd_->layout();
  const auto& segments = ssd_->segments(s);
  const AlignedBytes pages(kExportPages * layout.page_bytes);
  const int64_t rows_at_once = kExportPages * layout.rows_per_page;
  for (size_t place = 0; place < segments.size(); ++place) {
    Segment* const segment = segments[place].get();
    if (segment == nullptr || segment->num_live() == 0) continue;
    for (int64_t first = 0; first < segment->num_rows();
         first += rows_at_once) {
      Status status = ssd_->CopyPages(segment, first / layout.rows_per_page,
                                      kExportPages, pages.data());
      if (!status.ok()) return status;
      const int64_t end = std::min(segment->num_rows(), first + rows_at_once);
      for (int64_t r = first; r < end; ++r) {
        if (!segment->is_live(r)) continue;
        std::byte* row = pages.data() + layout.InPages(r - first);
        if (!shard(s).IsOnDiskOnly(row, ssd_->LocationOf(place, r))) continue;
        CopyRow(row, layout_.num_floats(), i++, out);
      }
    }
  }
  return Status::Ok();
}

Status EmbeddingStore::ReadRows(const KeyBatch& keys, Executor* executor,
                                RowArrays* rows, bool* known) {
  Status status = Flush(executor);
  if (!status.ok()) return status;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  const int64_t num_floats = layout_.num_floats();
  std::fill_n(rows->floats, keys.n * num_floats, 0.0f);
  std::fill_n(rows->last_steps, keys.n, 0);
  std::fill_n(rows->counts, keys.n, 0);
  std::fill_n(known, keys.n, false);
  const auto take = [&](const PlacedKey& key, std::byte* row) {
    CopyRow(row, num_floats, key.position, rows);
    known[key.position] = true;
  };
  std::vector<ShardFetch> fetches(ssd_ == nullptr ? 0 : shards_.size());
  ForEachShard(keys.n, executor, [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    std::vector<const PlacedKey*> absent;
    for (int64_t i = 0; i < part.size; ++i) {
      const PlacedKey& key = part.keys[i];
      const uint32_t slot = shard(s).Find(key);
      if (slot == Shard::kNoSlot) {
        absent.push_back(&key);
      } else if (shard(s).rows().Header(slot)->known) {
        take(key, shard(s).rows().Row(slot));
      }
    }
    if (ssd_ != nullptr) {
      StartFetch(s, absent, &fetches[static_cast<size_t>(s)]);
    }
  });
  status = FinishFetch(&fetches, executor);
  if (!status.ok()) return status;
  for (const ShardFetch& fetch : fetches) {
    for (const Shard::DiskCopy& copy : fetch.copies) {
      if (Shard::IsCopyOf(copy)) take(*copy.key, copy.row);
    }
  }
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

Status EmbeddingStore::PutRows(int64_t n, const RowArrays& rows, int64_t step,
                               Executor* executor) {
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  Status status =
      Partition({rows.ids, n, rows.features, n}, executor, batch.get());
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  status = FlushLocked(executor);
  if (status.ok()) status = CheckRows(n, rows, step, *batch);
  ReturnBatch(std::move(batch));
  if (!status.ok()) return status;
  status = ImportAll(n, rows, executor);
  if (status.ok()) step_ = std::max(step_, step);
  return status;
}

Status EmbeddingStore::Visit(Executor* executor, const RowVisitor& visit) {
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  Status status = FlushLocked(executor);
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  for (int64_t s = 0; s < num_shards() && status.ok(); ++s) {
    status = VisitKnownRows(
        s, [&](const KnownRow& row) { visit(row.id, row.weights); });
  }
  return status;
}

Status EmbeddingStore::CheckRows(int64_t n, const RowArrays& rows, int64_t step,
                                 const ResolvedBatch& batch) const {
  const int64_t num_floats = n * layout_.num_floats();
  constexpr float kMaxFloat = std::numeric_limits<float>::max();
  bool good = step >= 0 && step <= kMaxStep && batch.batch.size() == n &&
              kernels_.all_within(rows.floats, num_floats, kMaxFloat);
  for (int64_t i = 0; good && i < n; ++i) {
    good = 0 <= rows.last_steps[i] && rows.last_steps[i] <= step &&
           0 <= rows.counts[i] && rows.counts[i] <= kMaxStep;
  }
  if (good) return Status::Ok();
  return Status::InvalidArgument(
      "Table '" + options_.name +
      "' takes rows as it gave them: features and counters not negative, last "
      "steps up to the step, finite numbers. Received: other rows, with step=" +
      std::to_string(step) + ". The table is as it was.");
}

Status EmbeddingStore::CheckFits(int64_t n) {
  const bool evicts = options_.eviction_policy != EvictionPolicy::kNone;
  if (!budget_->is_limited() || evicts) return Status::Ok();
  const int64_t row_bytes = layout_.row_bytes();
  int64_t own_rows = 0;
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex());
    own_rows += shard->rows().size();
  }
  const int64_t others = budget_->used_bytes() - own_rows * row_bytes;
  const int64_t needed = others + n * row_bytes;
  if (needed <= budget_->limit_bytes()) return Status::Ok();
  return Status::ResourceExhausted(
      "Table '" + options_.name + "' cannot take " + std::to_string(n) +
      " rows of " + std::to_string(row_bytes) +
      " bytes: the budget is ram=" + std::to_string(budget_->limit_bytes()) +
      " bytes. The table is as it was. Raise `ram` to " +
      std::to_string(needed) + " bytes or more.");
}

Status EmbeddingStore::Import(int64_t n, const RowArrays& rows, int64_t step,
                              Executor* executor) {
  std::lock_guard<std::mutex> save_lock(save_mutex_);
  AbandonSave();
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  Status status =
      Partition({rows.ids, n, rows.features, n}, executor, batch.get());
  if (!status.ok()) return status;
  // Gradients of lookups before the import belong to rows that are gone.
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  status = CheckRows(n, rows, step, *batch);
  if (status.ok()) status = CheckFits(n);
  if (status.ok() && ssd_ != nullptr) status = ssd_->error();
  if (!status.ok()) return status;
  Clear(step, executor);
  return ImportAll(n, rows, executor);
}

Status EmbeddingStore::ImportAll(int64_t n, const RowArrays& rows,
                                 Executor* executor) {
  Status status;
  // Evicted rows of a small budget go to disk; without one, they are gone.
  for (int64_t start = 0; start < n && status.ok(); start += kImportRows) {
    status =
        ImportSome(start, std::min(n, start + kImportRows), rows, executor);
  }
  return status;
}

void EmbeddingStore::Clear(int64_t step, Executor* executor) {
  reports_.clear();
  expiry_error_ = Status::Ok();  // Of rows that are gone now.
  ++imports_;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    budget_->Release(shard(s).rows().size() * layout_.row_bytes());
    shard(s).Clear();
  });
  if (admission_ != nullptr) admission_->Clear();
  step_ = step;
}

Status EmbeddingStore::ImportSome(int64_t start, int64_t end,
                                  const RowArrays& rows, Executor* executor) {
  const int64_t n = end - start;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  Status status = Partition({rows.ids + start, n, rows.features + start, n},
                            executor, batch.get());
  if (status.ok()) status = CheckDisk();
  if (status.ok()) status = Resolve(batch.get(), executor, /*rows=*/nullptr);
  if (!status.ok()) return status;
  const int64_t num_floats = layout_.num_floats();
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  // Another thread may have evicted some in between.
  status = BringBack(*batch, executor);
  if (!status.ok()) return status;
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    for (int64_t i = 0; i < part.size; ++i) {
      uint32_t slot = shard(s).Find(part.keys[i]);
      if (slot == Shard::kNoSlot) {
        if (ssd_ == nullptr) continue;  // Evicted for good.
        slot = shard(s).Insert(part.keys[i]);
        budget_->ForceReserve(layout_.row_bytes());
      }
      const int64_t from = start + part.keys[i].position;
      std::byte* row = shard(s).MakeKnown(slot);
      RowHeader* header = RowLayout::Header(row);
      header->last_step = static_cast<uint32_t>(rows.last_steps[from]);
      header->count = static_cast<uint32_t>(rows.counts[from]);
      shard(s).CountWasSet(slot);
      std::copy_n(rows.floats + from * num_floats, num_floats,
                  RowLayout::Weights(row));
    }
  });
  SettleDebt(executor);
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

}  // namespace tfctr
