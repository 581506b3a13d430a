// Whole rows out of and into the store.

#include <algorithm>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {

Status EmbeddingStore::Export(
    Executor* executor,
    const std::function<Status(int64_t n, RowArrays*)>& allocate) {
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  FlushLocked(executor);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& shard : shards_) locks.emplace_back(shard->mutex());

  // Where each shard's rows go.
  std::vector<int64_t> offsets = {0};
  for (const auto& shard : shards_) {
    offsets.push_back(offsets.back() + shard->known());
  }

  RowArrays out = {};
  Status status = allocate(offsets.back(), &out);
  if (!status.ok()) return status;
  const int64_t num_floats = layout_.num_floats();
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const RamTier& tier = shard(s).rows();
    int64_t i = offsets[static_cast<size_t>(s)];
    for (int64_t slot = 0; slot < tier.num_slots(); ++slot) {
      std::byte* row = tier.Row(static_cast<uint32_t>(slot));
      const RowHeader& header = *RowLayout::Header(row);
      if (!header.live || !header.known) continue;
      out.ids[i] = header.id;
      out.features[i] = static_cast<int32_t>(header.feature);
      out.last_steps[i] = header.last_step;
      out.counts[i] = header.count;
      std::copy_n(RowLayout::Weights(row), num_floats,
                  out.floats + i * num_floats);
      ++i;
    }
  });
  return Status::Ok();
}

Status EmbeddingStore::Import(int64_t n, const RowArrays& rows, int64_t step,
                              Executor* executor) {
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  Status status =
      Partition({rows.ids, n, rows.features, n}, executor, batch.get());
  if (!status.ok()) return status;
  // Gradients of lookups before the import belong to rows that are gone.
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  reports_.clear();
  ForEachShard(n, executor, [&](int64_t s) {
    budget_->Release(shard(s).rows().size() * layout_.row_bytes());
    shard(s).Clear();
  });
  step_ = step;
  const int64_t num_floats = layout_.num_floats();
  Buffer<float> ignored;
  status = Resolve(batch.get(), executor, ignored.Resize(n * layout_.dim()));
  if (!status.ok()) return status;
  ForEachShard(n, executor, [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    for (int64_t i = 0; i < part.size; ++i) {
      const uint32_t slot = shard(s).Find(part.keys[i]);
      if (slot == Shard::kNoSlot) continue;  // Evicted under a small budget.
      const int64_t from = part.keys[i].position;
      std::byte* row = shard(s).MakeKnown(slot);
      RowHeader* header = RowLayout::Header(row);
      header->last_step = static_cast<uint32_t>(rows.last_steps[from]);
      header->count = static_cast<uint32_t>(rows.counts[from]);
      std::copy_n(rows.floats + from * num_floats, num_floats,
                  RowLayout::Weights(row));
    }
  });
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

}  // namespace tfctr
