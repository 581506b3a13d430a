#include "tfctr_ops/cc/store/embedding_store.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tfctr {
namespace {

// Smaller batches are done before another thread would have woken up.
constexpr int64_t kMinParallelBatch = 2048;
// Rows are allocated in chunks of this size, smaller ones under a small budget.
constexpr int64_t kChunkBytes = 128 << 10;
constexpr size_t kMaxFreeBatches = 4;
constexpr int64_t kMaxFreeBatchKeys = 4 << 20;

int64_t ChunkBytes(const MemoryBudget& budget, int64_t num_shards) {
  if (!budget.is_limited()) return kChunkBytes;
  return std::min(kChunkBytes, budget.limit_bytes() / num_shards / 8);
}

}  // namespace

Ticket::~Ticket() { store_->CloseTicket(this); }

Status EmbeddingStore::Create(StoreOptions options,
                              std::shared_ptr<MemoryBudget> budget,
                              std::shared_ptr<EmbeddingStore>* store) {
  Status status = CheckNumaNode(options.numa_node);
  if (!status.ok()) return status;
  std::unique_ptr<SsdTier> ssd;
  if (!options.ssd.directory.empty()) {
    options.ssd.ram_bytes = budget->limit_bytes();
    const RowLayout layout(options.dim,
                           options.optimizer.NumSlotFloats(options.dim));
    const int64_t num_shards = int64_t{1} << options.shard_bits;
    const int64_t least = SsdTier::MinLimitBytes(layout, num_shards);
    if (options.ssd.limit_bytes >= 0 && options.ssd.limit_bytes < least) {
      return Status::InvalidArgument(
          "Table '" + options.name + "' needs an `ssd_limit` of at least " +
          std::to_string(least) + " bytes. Received: ssd_limit=" +
          std::to_string(options.ssd.limit_bytes) + ".");
    }
    status = SsdTier::Open(options.ssd, layout, num_shards, &ssd);
    if (!status.ok()) return status;
  }
  // A child of fork has none of the threads, and the files are its parent's.
  const pid_t owner = getpid();
  const auto remove = [owner](EmbeddingStore* own) {
    if (getpid() == owner) delete own;
  };
  try {
    store->reset(new EmbeddingStore(options, std::move(budget), std::move(ssd)),
                 remove);
  } catch (const std::bad_alloc&) {
    return Admission::TooLarge(options);
  }
  return Status::Ok();
}

EmbeddingStore::EmbeddingStore(StoreOptions options,
                               std::shared_ptr<MemoryBudget> budget,
                               std::unique_ptr<SsdTier> ssd)
    : options_(std::move(options)),
      layout_(options_.dim, options_.optimizer.NumSlotFloats(options_.dim)),
      kernels_(BestRowKernels()),
      budget_(std::move(budget)),
      arena_(options_.numa_node),
      ssd_(std::move(ssd)) {
  options_.salt = Mix64(options_.feature_seeds.at(0));
  const int64_t num_shards = int64_t{1} << options_.shard_bits;
  const int64_t chunk_bytes = ChunkBytes(*budget_, num_shards);
  for (int64_t s = 0; s < num_shards; ++s) {
    shards_.push_back(std::make_unique<Shard>(options_, layout_, chunk_bytes, s,
                                              &arena_, ssd_.get()));
  }
  if (options_.admission.kind != AdmissionOptions::Kind::kNone) {
    admission_ = std::make_unique<Admission>(options_);
    for (const auto& shard : shards_) shard->set_admission(admission_.get());
  }
  if (ssd_ == nullptr) return;
  background_ = std::make_unique<BackgroundThread>();
  is_stale_.reset(new std::atomic<bool>[static_cast<size_t>(num_shards)]());
  ssd_->set_on_stale([this](int64_t s) {
    if (closes_ || is_stale_[static_cast<size_t>(s)].exchange(true)) return;
    background_->Add([this, s] {
      is_stale_[static_cast<size_t>(s)] = false;
      while (!closes_ && CompactShard(ssd_.get(), s, /*any=*/false)) {
      }
    });
  });
}

EmbeddingStore::~EmbeddingStore() {
  closes_ = true;
  FinishBackground();
  int64_t rows = 0;
  for (const auto& shard : shards_) rows += shard->rows().size();
  budget_->Release(rows * layout_.row_bytes());
}

void EmbeddingStore::ForEachShard(int64_t batch_size, Executor* executor,
                                  const std::function<void(int64_t)>& task) {
  const auto locked_task = [&](int64_t s) {
    std::lock_guard<std::mutex> lock(shard(s).mutex());
    task(s);
  };
  SerialExecutor serial;
  Executor* const chosen = batch_size < kMinParallelBatch ? &serial : executor;
  chosen->ParallelFor(num_shards(), locked_task);
}

std::unique_ptr<ResolvedBatch> EmbeddingStore::TakeBatch() {
  std::lock_guard<std::mutex> lock(batches_mutex_);
  if (free_batches_.empty()) return std::make_unique<ResolvedBatch>();
  std::unique_ptr<ResolvedBatch> batch = std::move(free_batches_.back());
  free_batches_.pop_back();
  return batch;
}

void EmbeddingStore::ReturnBatch(std::unique_ptr<ResolvedBatch> batch) {
  // One huge batch, as of an import, would stay in memory for ever.
  if (batch->batch.size() > kMaxFreeBatchKeys) return;
  std::lock_guard<std::mutex> lock(batches_mutex_);
  if (free_batches_.size() < kMaxFreeBatches) {
    free_batches_.push_back(std::move(batch));
  }
}

Status EmbeddingStore::Partition(const KeyBatch& keys, Executor* executor,
                                 ResolvedBatch* batch) const {
  Status status = batch->batch.Partition(
      keys, options_.shard_bits, options_.salt,
      static_cast<int64_t>(options_.feature_seeds.size()), executor);
  if (status.ok()) batch->Resize(static_cast<int64_t>(shards_.size()));
  return status;
}

Status EmbeddingStore::Read(const KeyBatch& keys, Executor* executor,
                            float* rows) {
  Status status = Flush(executor);
  if (!status.ok()) return status;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  if (batch->batch.size() < keys.n) {
    std::fill_n(rows, keys.n * layout_.dim(), 0.0f);
  }
  const auto shards = static_cast<size_t>(ssd_ == nullptr ? 0 : num_shards());
  std::vector<ShardFetch> fetches(shards);
  ForEachShard(keys.n, executor, [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    if (ssd_ == nullptr) {
      shard(s).Read(part.keys, part.size, rows, nullptr);
      return;
    }
    std::vector<const PlacedKey*> absent;
    shard(s).Read(part.keys, part.size, rows, &absent);
    StartFetch(s, absent, &fetches[static_cast<size_t>(s)]);
  });
  status = FinishFetch(&fetches, executor);
  for (const ShardFetch& fetch : fetches) {
    for (const Shard::DiskCopy& copy : fetch.copies) {
      if (!status.ok() || !Shard::IsCopyOf(copy)) continue;
      std::copy_n(RowLayout::Weights(copy.row), layout_.dim(),
                  rows + copy.key->position * layout_.dim());
    }
  }
  ReturnBatch(std::move(batch));
  return status;
}

Status EmbeddingStore::Lookup(const KeyBatch& keys, Executor* executor,
                              float* rows, std::shared_ptr<Ticket>* ticket) {
  Status status = Flush(executor);
  if (status.ok()) status = CheckDisk();
  if (!status.ok()) return status;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  if (batch->batch.size() < keys.n) {
    std::fill_n(rows, keys.n * layout_.dim(), 0.0f);
  }
  status = Resolve(batch.get(), executor, rows, admission_ != nullptr);
  if (!status.ok()) return status;
  *ticket =
      std::make_shared<Ticket>(shared_from_this(), keys.n, std::move(batch));
  std::lock_guard<std::mutex> lock(step_mutex_);
  (*ticket)->sequence_ = next_sequence_++;
  (*ticket)->imports_ = imports_;
  ++open_tickets_;
  return Status::Ok();
}

Status EmbeddingStore::Resolve(ResolvedBatch* batch, Executor* executor,
                               float* rows, bool asks) {
  if (budget_->is_limited() || ssd_ != nullptr || asks) {
    return ResolveWithinBudget(batch, executor, rows, asks);
  }
  ForEachShard(batch->batch.size(), executor, [&](int64_t s) {
    ShardBatch part = batch->OfShard(s);
    const int64_t before = shard(s).rows().size();
    shard(s).Resolve(&part, rows, /*absent=*/nullptr);
    const int64_t inserted = shard(s).rows().size() - before;
    budget_->ForceReserve(inserted * layout_.row_bytes());
    if (rows != nullptr) {
      found_rows_ += part.num_distinct - inserted;
      inserted_rows_ += inserted;
    }
    batch->num_distinct[static_cast<size_t>(s)] = part.num_distinct;
    batch->generations[static_cast<size_t>(s)] = shard(s).generation();
  });
  return Status::Ok();
}

std::vector<std::unique_lock<std::mutex>> EmbeddingStore::LockShards() {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& shard : shards_) locks.emplace_back(shard->mutex());
  return locks;
}

// First every shard looks for its keys, in memory and on disk; then it is
// settled, on one thread and in the order of the shards, who may insert and who
// must evict how many; then they insert. So a full store inserts nothing, and
// who is evicted does not depend on which thread came first.
Status EmbeddingStore::ResolveWithinBudget(ResolvedBatch* batch,
                                           Executor* executor, float* rows,
                                           bool asks) {
  const int64_t asked_at = asks ? step() : 0;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  std::vector<ShardBatch> parts;
  for (int64_t s = 0; s < num_shards(); ++s) parts.push_back(batch->OfShard(s));
  std::vector<int64_t> absent(parts.size());
  std::vector<ShardFetch> fetches(ssd_ == nullptr ? 0 : parts.size());
  std::vector<Newcomers> newcomers(asks ? parts.size() : 0);
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const auto i = static_cast<size_t>(s);
    std::vector<const PlacedKey*> keys;
    shard(s).Resolve(&parts[i], rows, &keys,
                     asks ? &newcomers[i].occurrences : nullptr);
    absent[i] = static_cast<int64_t>(keys.size());
    if (ssd_ != nullptr) StartFetch(s, keys, &fetches[i]);
    if (asks) newcomers[i].keys = std::move(keys);
  });
  Status status = rows == nullptr ? FinishFetch(&fetches, executor)
                                  : WaitForFetch(&fetches, executor);
  if (!status.ok()) return status;
  if (asks) AskAdmission(asked_at, fetches, executor, &newcomers, &absent);

  const int64_t row_bytes = layout_.row_bytes();
  const bool evicts = options_.eviction_policy != EvictionPolicy::kNone;
  int64_t missing = 0;
  for (const int64_t n : absent) missing += n;
  const int64_t granted = budget_->ReserveUpTo(missing, row_bytes);
  if (granted < missing && !evicts) {
    // Told while what was granted is still taken: it would be used as well.
    Status full = FullError(missing - granted);
    budget_->Release(granted * row_bytes);
    return full;
  }
  // Each shard evicts for its own keys, as far as it can; what is then still
  // owed, of this batch or of earlier ones, all shards share.
  std::vector<int64_t> must_evict(parts.size());
  std::vector<int64_t> may_evict(parts.size());  // Beyond that.
  int64_t left = granted;
  const int64_t debt = budget_->is_limited()
                           ? budget_->used_bytes() - budget_->limit_bytes()
                           : 0;
  int64_t owed = (std::max<int64_t>(0, debt) + row_bytes - 1) / row_bytes;
  for (size_t s = 0; s < parts.size(); ++s) {
    const int64_t inserts = std::min(left, absent[s]);
    left -= inserts;
    may_evict[s] = shards_[s]->rows().size() - parts[s].num_distinct;
    must_evict[s] = std::min(may_evict[s], absent[s] - inserts);
    may_evict[s] -= must_evict[s];
    owed += absent[s] - inserts - must_evict[s];
  }
  for (int64_t before = 0; owed > 0 && owed != before;) {
    before = owed;
    const int64_t share = (owed + num_shards() - 1) / num_shards();
    for (size_t s = 0; s < parts.size(); ++s) {
      const int64_t more = std::min({share, owed, may_evict[s]});
      must_evict[s] += more;
      may_evict[s] -= more;
      owed -= more;
    }
  }

  std::atomic<int64_t> evicted{0};
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const auto i = static_cast<size_t>(s);
    if (evicts) evicted += shard(s).Evict(must_evict[i], parts[i]);
    const int64_t found = parts[i].num_distinct;
    int64_t promoted = 0;
    if (ssd_ != nullptr) promoted = PromoteAll(s, fetches[i], /*used=*/true);
    if (asks) Admit(s, newcomers[i]);
    if (asks || absent[i] > 0) {
      shard(s).InsertAbsent(&parts[i], rows, /*inserts=*/!asks);
    }
    if (rows != nullptr) {
      found_rows_ += found;
      promoted_rows_ += promoted;
      inserted_rows_ += parts[i].num_distinct - found - promoted;
    }
    batch->num_distinct[i] = parts[i].num_distinct;
    batch->generations[i] = shard(s).generation();
  });
  // What was evicted made room for as many. A batch larger than the budget is
  // held all the same, and its rows leave with the next batches.
  budget_->ForceReserve((missing - granted - evicted) * row_bytes);
  return Status::Ok();
}

Status EmbeddingStore::Write(const KeyBatch& keys, const float* weights,
                             Executor* executor) {
  const int64_t dim = layout_.dim();
  constexpr float kMaxFloat = std::numeric_limits<float>::max();
  if (!kernels_.all_within(weights, keys.n * dim, kMaxFloat)) {
    return Status::InvalidArgument(
        "Table '" + options_.name +
        "' takes finite weights only. Received: weights with NaN or infinity. "
        "No row was changed.");
  }
  Status status = Flush(executor);
  if (status.ok()) status = CheckDisk();
  if (!status.ok()) return status;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  status = Resolve(batch.get(), executor, /*rows=*/nullptr);
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  // Another thread may have evicted some in between.
  status = BringBack(*batch, executor);
  if (!status.ok()) return status;
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    for (int64_t i = 0; i < part.size; ++i) {
      const PlacedKey& key = part.keys[i];
      uint32_t slot = shard(s).Find(key);
      if (slot == Shard::kNoSlot) {
        slot = shard(s).Insert(key);
        budget_->ForceReserve(layout_.row_bytes());
      }
      std::copy_n(weights + key.position * dim, dim,
                  RowLayout::Weights(shard(s).MakeKnown(slot)));
    }
  });
  SettleDebt(executor);
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

Status EmbeddingStore::Remove(const KeyBatch& keys, Executor* executor,
                              int64_t* removed) {
  Status status = Flush(executor);
  if (!status.ok()) return status;
  std::unique_ptr<ResolvedBatch> batch = TakeBatch();
  status = Partition(keys, executor, batch.get());
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  // A key on disk is known for sure only when its row has been read.
  status = BringBack(*batch, executor);
  if (!status.ok()) return status;
  std::atomic<int64_t> known{0};
  std::atomic<int64_t> freed{0};
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const ShardBatch part = batch->OfShard(s);
    for (int64_t i = 0; i < part.size; ++i) {
      const uint32_t slot = shard(s).Find(part.keys[i]);
      if (slot == Shard::kNoSlot) {
        if (admission_ != nullptr) {
          admission_->Forget(s, part.keys[i].feature, part.keys[i].id);
        }
        continue;
      }
      known += shard(s).rows().Header(slot)->known;
      ++freed;
      shard(s).Release(slot);
    }
  });
  *removed = known;
  budget_->Release(freed * layout_.row_bytes());
  ReturnBatch(std::move(batch));
  return Status::Ok();
}

}  // namespace tfctr
