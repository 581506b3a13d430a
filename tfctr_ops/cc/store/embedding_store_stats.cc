// What a store tells of itself.

#include <string>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {

StoreStats EmbeddingStore::Stats(Executor* executor) {
  StoreStats stats = {};
  {
    std::lock_guard<std::mutex> lock(step_mutex_);
    // What fails here fails again, and is told, at the next lookup.
    static_cast<void>(FlushLocked(executor));
    stats.step = step_;
    stats.skipped_updates = skipped_updates_;
    stats.expired_rows = expired_rows_;
  }
  stats.updated_rows = updated_rows_.load();
  stats.clipped_rows = clipped_rows_.load();
  stats.found_rows = found_rows_.load();
  stats.inserted_rows = inserted_rows_.load();
  stats.promoted_rows = promoted_rows_.load();
  stats.stalled_lookups = stalled_lookups_.load();
  stats.stalled_nanoseconds = stalled_nanoseconds_.load();
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex());
    stats.rows += shard->rows().size();
    stats.rows_on_disk_only += shard->on_disk_only();
    stats.known_rows += shard->known();
    stats.evicted_rows += shard->evicted();
    if (admission_ != nullptr) {
      stats.tracked_keys += admission_->tracked_keys(shard->number());
      stats.admission_bytes += admission_->allocated_bytes(shard->number());
    }
  }
  if (admission_ != nullptr) {
    stats.admission_bytes += admission_->filter_bytes();
    stats.refused_keys = refused_keys_.load();
  }
  stats.row_bytes = layout_.row_bytes();
  stats.memory_bytes = arena_.allocated_bytes();
  if (ssd_ != nullptr) {
    stats.disk_bytes = ssd_->used_bytes();
    stats.rows_read = ssd_->rows_read();
    stats.rows_written = ssd_->rows_written();
  }
  return stats;
}

int64_t EmbeddingStore::step() {
  std::lock_guard<std::mutex> lock(step_mutex_);
  return step_;
}

Status EmbeddingStore::FullError(int64_t num_missing) const {
  const int64_t row_bytes = layout_.row_bytes();
  const int64_t enough = budget_->used_bytes() + num_missing * row_bytes;
  return Status::ResourceExhausted(
      "Table '" + options_.name +
      "' is full: the budget of ram=" + std::to_string(budget_->limit_bytes()) +
      " bytes is used up by rows of " + std::to_string(row_bytes) +
      " bytes, and this batch has " + std::to_string(num_missing) +
      " new keys more than fit. Nothing was inserted. Possible fixes: 1) raise "
      "`ram` to " +
      std::to_string(enough) +
      " bytes or more; 2) let rows leave with eviction_policy='clock'; 3) "
      "lower "
      "`dim` or choose an optimizer with fewer slots.");
}

}  // namespace tfctr
