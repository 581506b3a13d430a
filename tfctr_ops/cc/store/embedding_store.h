// EmbeddingStore: maps keys (feature, id) to rows [weights | optimizer slots].
//
// A training step is a Lookup, which inserts unseen keys and returns a ticket,
// and an Update, which sums the gradients of equal keys and moves each distinct
// row once. Several lookups of one step make one update: it is applied when the
// last of their tickets reports, at the latest before the next lookup, read or
// export.
//
// Results do not depend on the number of threads. As long as no row is evicted
// for good, they depend neither on the order in which keys were first seen nor
// on the number of shards; with an SSD tier, no row ever is, and the memory
// budget changes nothing but the time.
//
// After an error of the disk, every method that may need it returns that error.
//
// Thread safety: every method may be called concurrently.

#ifndef TFCTR_OPS_CC_STORE_EMBEDDING_STORE_H_
#define TFCTR_OPS_CC_STORE_EMBEDDING_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tfctr_ops/cc/store/admission.h"
#include "tfctr_ops/cc/store/batch.h"
#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/memory_budget.h"
#include "tfctr_ops/cc/store/row_arrays.h"
#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/shard.h"
#include "tfctr_ops/cc/store/snapshot.h"
#include "tfctr_ops/cc/store/status.h"
#include "tfctr_ops/cc/store/store_options.h"
#include "tfctr_ops/cc/store/store_stats.h"
#include "tfctr_ops/cc/store/ticket.h"

namespace tfctr {

class EmbeddingStore : public std::enable_shared_from_this<EmbeddingStore> {
 public:
  // Bounds the magnitude of a gradient that is taken for real: squares and sums
  // of larger ones could overflow a row's state for good.
  static constexpr float kGradientBound = 1e12f;

  // Returns Unavailable or ResourceExhausted if the SSD tier cannot be opened.
  static Status Create(StoreOptions options,
                       std::shared_ptr<MemoryBudget> budget,
                       std::shared_ptr<EmbeddingStore>* store);
  ~EmbeddingStore();
  EmbeddingStore(const EmbeddingStore&) = delete;
  EmbeddingStore& operator=(const EmbeddingStore&) = delete;

  // Copies the weights of each key into `rows`, (n, dim). Keys that were never
  // updated read the default row. Changes nothing.
  Status Read(const KeyBatch& keys, Executor* executor, float* rows);

  // As Read, but unseen keys are inserted and read their initial rows; those
  // that the options' admission refuses read the default row, and their
  // gradients are dropped. Each lookup decides anew, also within a step. The
  // ticket is for Update; dropping it is fine. Returns ResourceExhausted, with
  // nothing inserted or counted, if the budget is used up and there is no
  // eviction policy.
  Status Lookup(const KeyBatch& keys, Executor* executor, float* rows,
                std::shared_ptr<Ticket>* ticket);

  // Brings rows that are on disk up into memory, for a lookup to come. Changes
  // no result, and does nothing without an SSD tier; with `unless_cached`, nor
  // while the page cache of the system has nearly all that is read. Other
  // methods go on while the disk is read.
  Status Prefetch(const KeyBatch& keys, Executor* executor,
                  bool unless_cached = false);

  // Takes the gradient of the lookup that gave `ticket`. Returns the number of
  // this update in *step. Returns InvalidArgument, with no row changed, if a
  // value is NaN or beyond kGradientBound and the options do not say to skip.
  Status Update(const std::shared_ptr<Ticket>& ticket, Gradient gradient,
                float learning_rate, Executor* executor, int64_t* step);

  // Sets the weights of keys, inserting unseen ones; slots and counters of rows
  // that exist stay. Of equal keys, the last wins. Returns InvalidArgument,
  // with nothing changed, if a weight is NaN or infinite.
  Status Write(const KeyBatch& keys, const float* weights, Executor* executor);

  // Removes keys, and what admission counted of them, but for what is in a
  // Bloom filter. Returns how many of their rows were ever updated or written.
  Status Remove(const KeyBatch& keys, Executor* executor, int64_t* removed);

  // Removes rows by the options' expiry, as every `expiry.every` updates do,
  // and returns how many. Only known rows count, and leave. All wait meanwhile.
  // Returns FailedPrecondition if the options name none.
  Status Expire(Executor* executor, int64_t* removed);

  // Hands out all known rows, as of one moment: calls allocate(n) once and
  // fills the arrays it returns.
  Status Export(Executor* executor,
                const std::function<Status(int64_t n, RowArrays*)>& allocate);

  // Copies the whole rows of keys to `rows`, (keys.n), whose ids and features
  // may be null. Says of each key whether it is known; the others have zeros.
  // Changes nothing.
  Status ReadRows(const KeyBatch& keys, Executor* executor, RowArrays* rows,
                  bool* known);

  // Sets n whole rows, inserting unseen keys; of equal keys, the last wins. The
  // store has then seen `step` updates, unless it had seen more. Returns
  // InvalidArgument if they are not such as Export gives, with nothing
  // changed; after another error, some may have been set.
  Status PutRows(int64_t n, const RowArrays& rows, int64_t step,
                 Executor* executor);

  // Shows all known rows, as of one moment, one by one; all wait meanwhile.
  using RowVisitor = std::function<void(int64_t id, const float* weights)>;
  Status Visit(Executor* executor, const RowVisitor& visit);

  // Replaces all rows by the n rows of `rows`, and the step. Returns
  // InvalidArgument if they are not such as Export gives, ResourceExhausted if
  // they do not fit, both with nothing changed.
  Status Import(int64_t n, const RowArrays& rows, int64_t step,
                Executor* executor);

  // What admission counted, as it stands in a snapshot; no bytes without
  // admission. Import forgets it, and a later ImportAdmission brings it back,
  // as Restore does.
  Status ExportAdmission(Executor* executor, std::vector<char>* bytes);
  Status ImportAdmission(const std::vector<char>& bytes,
                         const std::vector<int32_t>& features,
                         Executor* executor);

  // Writes all known rows, as of one moment, to a new directory; `metadata` is
  // kept beside them. Training may go on meanwhile. Rows that have not changed
  // since the last snapshot are not written again: their files are linked, or
  // copied if the directory is on another file system. Returns
  // FailedPrecondition if the directory exists. After an error it does not.
  Status Save(const std::string& directory, const std::string& metadata,
              Executor* executor, SaveReport* report);

  // The same in two calls: the snapshot is of the moment of the first, which
  // takes no time but for a copy of what admission counted, with all waiting,
  // and the second does the work, beside the training. To begin another, or to
  // replace all rows, gives up what was begun. Without an SSD tier, what
  // snapshots share is kept in a locked directory of this store under
  // `scratch`, which the first snapshot chooses.
  Status BeginSave(const std::string& directory, const std::string& scratch,
                   Executor* executor);
  Status FinishSave(const std::string& metadata, SaveReport* report);

  // Replaces all rows, and the step, by those of snapshots. Returns
  // InvalidArgument if they are of other rows, with nothing changed; DataLoss
  // or Unavailable if one is damaged: with nothing changed if that shows in a
  // manifest or in what admission counted, with the table empty if it is in a
  // segment.
  Status Restore(const RestoreRequest& request, Executor* executor);
  // The same for all keys of one snapshot.
  Status Restore(const std::string& directory,
                 const std::vector<int32_t>& features,
                 const std::vector<uint64_t>& seeds, Executor* executor) {
    return Restore({{directory}, features, seeds}, executor);
  }

  // Waits until background threads have nothing to do.
  void FinishBackground();

  // Updates so far. Open steps count from their first gradient.
  int64_t step();
  StoreStats Stats(Executor* executor);

  const StoreOptions& options() const { return options_; }
  const RowLayout& layout() const { return layout_; }

 private:
  friend class Ticket;

  // A lookup whose gradient has come.
  struct Report {
    int64_t sequence;
    std::unique_ptr<ResolvedBatch> batch;
    Gradient gradient;
  };

  EmbeddingStore(StoreOptions options, std::shared_ptr<MemoryBudget> budget,
                 std::unique_ptr<SsdTier> ssd);

  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  Shard& shard(int64_t s) { return *shards_[static_cast<size_t>(s)]; }

  // Runs task(s) for every shard, each under its lock; on the calling thread
  // alone if the batch is too small to share.
  void ForEachShard(int64_t batch_size, Executor* executor,
                    const std::function<void(int64_t)>& task);

  // Batches are used again: their memory is warm and already mapped.
  std::unique_ptr<ResolvedBatch> TakeBatch();
  void ReturnBatch(std::unique_ptr<ResolvedBatch> batch);
  Status Partition(const KeyBatch& keys, Executor* executor,
                   ResolvedBatch* batch) const;

  // Resolves every key of the batch to a row, inserting what is absent, or, if
  // it `asks`, what admission admits of that.
  Status Resolve(ResolvedBatch* batch, Executor* executor, float* rows,
                 bool asks = false);
  Status ResolveWithinBudget(ResolvedBatch* batch, Executor* executor,
                             float* rows, bool asks);
  std::vector<std::unique_lock<std::mutex>> LockShards();

  // ------ With an SSD tier; see embedding_store_ssd.cc.

  // What a shard wants from disk.
  struct ShardFetch {
    std::vector<Shard::DiskCopy> copies;
    std::vector<SsdTier::Read> reads;
    std::unique_ptr<std::byte[]> memory;  // Of the copies' rows.
  };
  // Finds the copies of keys that are not in memory. REQUIRES: the shard's
  // lock.
  void StartFetch(int64_t s, const std::vector<const PlacedKey*>& absent,
                  ShardFetch* fetch);
  // Reads them all.
  Status FinishFetch(std::vector<ShardFetch>* fetches, Executor* executor);
  // The same for a lookup, which waits for it.
  Status WaitForFetch(std::vector<ShardFetch>* fetches, Executor* executor);
  // Brings up what was read and is still wanted; returns how many rows.
  // REQUIRES: the shard's lock.
  int64_t PromoteAll(int64_t s, const ShardFetch& fetch, bool used);
  // Brings rows of the batch up that are on disk only. REQUIRES: all locks.
  Status BringBack(const ResolvedBatch& batch, Executor* executor);
  // Evicts what is above the budget. REQUIRES: all locks.
  void SettleDebt(Executor* executor);
  // The state of the disk; makes room there if a batch found none. REQUIRES: no
  // lock.
  Status CheckDisk();
  // Compacts the stalest segment of the shard, if there is one. Returns whether
  // that gained room. REQUIRES: no lock.
  bool CompactShard(SsdTier* tier, int64_t s, bool any);
  // Copies the rows of a shard that are on disk only to `out` from `i` on.
  // REQUIRES: all locks.
  Status ExportFromDisk(int64_t s, int64_t i, RowArrays* out);

  // ------ With admission; see embedding_store_admission.cc. REQUIRES: all
  // locks.

  // Keys of a lookup that a shard has no rows of: one of each.
  struct Newcomers {
    std::vector<const PlacedKey*> keys;
    std::vector<int64_t> occurrences;  // Of each, as the batch counts them.
    std::vector<Admission::Answer> answers;
  };
  // Takes out keys whose rows are on disk, asks about the others, and takes
  // those that are refused off `absent`, the number of each shard's.
  void AskAdmission(int64_t step, const std::vector<ShardFetch>& fetches,
                    Executor* executor, std::vector<Newcomers>* newcomers,
                    std::vector<int64_t>* absent);
  // Inserts those that were admitted, and counts the others.
  void Admit(int64_t s, const Newcomers& newcomers);
  // What a snapshot of this moment keeps.
  std::vector<char> CopyAdmission() const;

  // ------ Expiry; see embedding_store_expiry.cc. REQUIRES: all locks.

  struct KnownRow {
    int64_t shard;
    int64_t id;
    uint32_t feature;
    uint32_t last_step;
    uint32_t slot;         // kNoSlot if it is on disk only.
    Location location;     // Then.
    const float* weights;  // For the moment.
  };
  // Shows all known rows of a shard, each of which may be removed meanwhile.
  Status VisitKnownRows(int64_t s,
                        const std::function<void(const KnownRow&)>& visit);
  void Remove(const KnownRow& row);
  bool IsExpired(const KnownRow& row) const;
  // REQUIRES: step_mutex_ is held, and no lock of a shard.
  Status ExpireLocked(Executor* executor, int64_t* removed);

  // ------ Snapshots; see embedding_store_snapshot.cc. REQUIRES: save_mutex_.

  // Where copies of rows are kept that snapshots share.
  SsdTier* tier() const {
    return ssd_ != nullptr ? ssd_.get() : snapshot_tier_.get();
  }
  Status OpenSnapshotTier(const std::string& scratch);
  // Writes what has changed, and lists the segments of the snapshot.
  Status SaveRows(std::vector<SsdTier::CutSegment>* segments);
  // The same on a thread that gives way to the training.
  Status SaveRowsBeside(std::vector<SsdTier::CutSegment>* segments);
  Status NoMemoryToSave() const;
  // Ends the cut; returns whether every row was saved.
  bool EndCut();
  // Gives the snapshot up that was begun, if there is one.
  void AbandonSave();
  Status CheckRequest(const RestoreRequest& request) const;
  Status CheckSnapshot(const std::string& directory,
                       const Snapshot& snapshot) const;
  // A snapshot to be restored, and what its admission has counted.
  struct SavedPart {
    std::string directory;
    Snapshot snapshot;
    std::vector<char> admission;
  };
  Status OpenParts(const RestoreRequest& request,
                   std::vector<SavedPart>* parts) const;
  Status RestoreRows(const RestoreRequest& request, const SavedPart& part,
                     Executor* executor);

  Status FullError(int64_t num_missing) const;
  // Whether the rows are such as Export gives.
  Status CheckRows(int64_t n, const RowArrays& rows, int64_t step,
                   const ResolvedBatch& batch) const;
  // Removes every row. REQUIRES: step_mutex_.
  void Clear(int64_t step, Executor* executor);
  Status ImportAll(int64_t n, const RowArrays& rows, Executor* executor);
  Status ImportSome(int64_t start, int64_t end, const RowArrays& rows,
                    Executor* executor);
  // Whether n rows would fit in place of those that are there.
  Status CheckFits(int64_t n);

  void CloseTicket(Ticket* ticket);
  // Ends the open step: applies what has been reported.
  Status Flush(Executor* executor);
  // REQUIRES: step_mutex_ is held, here and below.
  Status FlushLocked(Executor* executor);
  void ApplyToShard(int64_t s, const UpdateStep& step);
  // Gives the open step up, with all that was and will be reported for it.
  void DropStep();
  // Appends the distinct slots of a ticket to `slots`, and sets place_of[i] to
  // where its i-th one stands there.
  void Unite(int64_t s, const ResolvedBatch& batch,
             std::vector<uint32_t>* slots, int64_t* num_slots,
             std::vector<int32_t>* place_of);

  StoreOptions options_;  // Only Restore changes it: the seeds.
  const RowLayout layout_;
  const RowKernels& kernels_;
  const std::shared_ptr<MemoryBudget> budget_;
  Arena arena_;
  const std::unique_ptr<SsdTier> ssd_;    // Null if there is none.
  std::unique_ptr<Admission> admission_;  // Null if every key is admitted.
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<int64_t> refused_keys_{0};
  std::atomic<int64_t> updated_rows_{0}, clipped_rows_{0};
  std::atomic<int64_t> found_rows_{0}, inserted_rows_{0}, promoted_rows_{0};
  std::atomic<int64_t> stalled_lookups_{0}, stalled_nanoseconds_{0};

  std::mutex batches_mutex_;
  // Guarded by batches_mutex_:
  std::vector<std::unique_ptr<ResolvedBatch>> free_batches_;

  std::mutex save_mutex_;  // Before step_mutex_. One snapshot at a time.
  // Without an SSD tier: the copies of rows that snapshots share. Made by the
  // first snapshot; guarded by save_mutex_.
  std::unique_ptr<SsdTier> snapshot_tier_;
  std::string saves_to_;  // The snapshot that was begun; else empty.
  int64_t step_of_save_ = 0;
  std::vector<char> admission_of_save_;

  std::mutex step_mutex_;  // Before any shard's.
  // Guarded by step_mutex_:
  int64_t step_ = 0;
  int64_t imports_ = 0;  // Gradients of lookups before an import are dropped.
  int64_t open_tickets_ = 0;
  int64_t next_sequence_ = 0;
  std::vector<Report> reports_;  // Of the open step.
  float learning_rate_ = 0.0f;   // Of the open step.
  bool drops_step_ = false;      // Whether a gradient of the open step was bad.
  int64_t skipped_updates_ = 0;
  Status expiry_error_;  // Of a step that was done; see Flush.
  int64_t expired_rows_ = 0;

  std::atomic<bool> closes_{false};
  // Of each shard: whether a compaction waits for its turn.
  std::unique_ptr<std::atomic<bool>[]> is_stale_;
  // Compacts; null without an SSD tier. Last: its jobs use all others.
  std::unique_ptr<BackgroundThread> background_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_EMBEDDING_STORE_H_
