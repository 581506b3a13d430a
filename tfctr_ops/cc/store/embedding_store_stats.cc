// What a store tells of itself.

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

}  // namespace tfctr
