// Whole rows out of and into the store.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

constexpr int64_t kMaxStep = std::numeric_limits<uint32_t>::max();

}  // namespace

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
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  Status status =
      Partition({rows.ids, n, rows.features, n}, executor, batch.get());
  if (!status.ok()) return status;
  // Gradients of lookups before the import belong to rows that are gone.
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  status = CheckRows(n, rows, step, *batch);
  if (status.ok()) status = CheckFits(n);
  if (!status.ok()) return status;
  reports_.clear();
  ++imports_;
  ForEachShard(n, executor, [&](int64_t s) {
    budget_->Release(shard(s).rows().size() * layout_.row_bytes());
    shard(s).Clear();
  });
  step_ = step;
  const int64_t num_floats = layout_.num_floats();
  status = Resolve(batch.get(), executor, /*rows=*/nullptr);
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
