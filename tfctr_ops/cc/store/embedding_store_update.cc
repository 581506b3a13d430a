// The second half of a training step: from the gradients of the lookups to one
// update of each distinct row.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

// Gradients are checked in pieces of this many floats (256 KiB).
constexpr int64_t kCheckedPiece = 1 << 16;

bool AllWithin(const RowKernels& kernels, const float* values, int64_t n,
               float bound, Executor* executor) {
  const int64_t num_pieces = (n + kCheckedPiece - 1) / kCheckedPiece;
  std::atomic<bool> all_within{true};
  executor->ParallelFor(num_pieces, [&](int64_t piece) {
    const int64_t start = piece * kCheckedPiece;
    const int64_t size = std::min(kCheckedPiece, n - start);
    if (!kernels.all_within(values + start, size, bound)) all_within = false;
  });
  return all_within;
}

// What a thread needs to update one shard; kept between steps.
struct Scratch {
  std::vector<uint32_t> slots;       // Of the distinct rows of all lookups.
  std::vector<std::byte*> rows;      // The same rows.
  std::vector<float> sums;           // Their gradients.
  std::vector<int64_t> counts;       // Their samples, if the optimizer clips.
  std::vector<int32_t> newly_dirty;  // See RowKernels::update.
  std::vector<std::vector<int32_t>> place_of;  // See Unite; one per lookup.
  std::vector<int32_t> positions;  // Of one lookup's keys, in its gradient.
  std::vector<int32_t> places;     // Of the same keys, in `sums`.
};

}  // namespace

void EmbeddingStore::CloseTicket(Ticket* ticket) {
  std::lock_guard<std::mutex> lock(step_mutex_);
  if (ticket->resolved_ == nullptr) return;
  --open_tickets_;
  ReturnBatch(std::move(ticket->resolved_));
}

Status EmbeddingStore::Update(const std::shared_ptr<Ticket>& ticket,
                              Gradient gradient, float learning_rate,
                              Executor* executor, int64_t* step) {
  const bool is_good =
      gradient.is_good &&
      AllWithin(kernels_, gradient.values, ticket->num_keys() * layout_.dim(),
                kGradientBound, executor);
  std::lock_guard<std::mutex> lock(step_mutex_);
  if (ticket->resolved_ == nullptr) {
    return Status::FailedPrecondition(
        "Table '" + options_.name +
        "' was asked twice for the gradient of one lookup, and each would move "
        "its rows. Take one gradient per call of the layer: add the losses up "
        "first, and do not use a persistent tape twice.");
  }
  --open_tickets_;
  std::unique_ptr<ResolvedBatch> batch = std::move(ticket->resolved_);
  if (ticket->imports_ != imports_) {
    ReturnBatch(std::move(batch));
    Status status;
    if (open_tickets_ == 0) status = FlushLocked(executor);
    *step = step_;
    if (!status.ok()) return status;
    return Status::Ok();
  }
  const int64_t number = step_ + (reports_.empty() ? 1 : 0);
  if (!is_good) DropStep();
  if (!is_good && !options_.skip_bad_gradients) {
    return Status::InvalidArgument(
        "Table '" + options_.name +
        "' received a gradient that is NaN, infinite or larger than 1e12, in "
        "update " +
        std::to_string(number) +
        ". No row was changed. Lower the learning rate, check the inputs and "
        "the loss, or skip such steps with "
        "TableConfig(bad_gradients='skip').");
  }
  if (!drops_step_) {
    if (reports_.empty()) ++step_;
    learning_rate_ = learning_rate;
    reports_.push_back(
        {ticket->sequence_, std::move(batch), std::move(gradient)});
  }
  Status status;
  if (open_tickets_ == 0) status = FlushLocked(executor);
  *step = step_;
  return status;
}

void EmbeddingStore::DropStep() {
  // After an error the number stays used: the caller may have been told it.
  if (!reports_.empty() && options_.skip_bad_gradients) --step_;
  reports_.clear();
  if (!drops_step_ && options_.skip_bad_gradients) ++skipped_updates_;
  drops_step_ = true;
}

Status EmbeddingStore::Flush(Executor* executor) {
  std::lock_guard<std::mutex> lock(step_mutex_);
  Status status = std::exchange(expiry_error_, Status::Ok());
  return status.ok() ? FlushLocked(executor) : status;
}

Status EmbeddingStore::FlushLocked(Executor* executor) {
  drops_step_ = false;
  if (reports_.empty()) return Status::Ok();
  // As if the lookups had been one: in the order they were made.
  std::sort(
      reports_.begin(), reports_.end(),
      [](const Report& a, const Report& b) { return a.sequence < b.sequence; });
  const UpdateStep step = {learning_rate_, step_};
  int64_t num_keys = 0;
  for (const Report& report : reports_) num_keys += report.batch->batch.size();
  if (ssd_ == nullptr) {
    ForEachShard(num_keys, executor, [&](int64_t s) { ApplyToShard(s, step); });
  } else {
    const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
    for (const Report& report : reports_) {
      Status status = BringBack(*report.batch, executor);
      if (!status.ok()) return status;
    }
    executor->ParallelFor(num_shards(),
                          [&](int64_t s) { ApplyToShard(s, step); });
    SettleDebt(executor);
  }
  for (Report& report : reports_) ReturnBatch(std::move(report.batch));
  reports_.clear();
  // Here, and not with the next lookup: it is the step that makes it due.
  const ExpiryOptions& expiry = options_.expiry;
  if (!expiry.is_on() || expiry.every <= 0 || step.number % expiry.every != 0) {
    return Status::Ok();
  }
  int64_t removed;
  // The update itself is done, and its caller must count it: an error of the
  // disk is told by the next call.
  expiry_error_ = ExpireLocked(executor, &removed);
  return Status::Ok();
}

void EmbeddingStore::Unite(int64_t s, const ResolvedBatch& batch,
                           std::vector<uint32_t>* slots, int64_t* num_slots,
                           std::vector<int32_t>* place_of) {
  const ShardBatch part = batch.OfShard(s);
  slots->resize(static_cast<size_t>(*num_slots + part.num_distinct));
  place_of->resize(static_cast<size_t>(part.num_distinct));
  const bool handles_hold =
      batch.generations[static_cast<size_t>(s)] == shard(s).generation();
  if (handles_hold && reports_.size() == 1) {
    // One lookup, as nearly always: its distinct rows are the union.
    std::copy_n(part.slots, part.num_distinct, slots->begin());
    std::iota(place_of->begin(), place_of->end(), 0);
    *num_slots = part.num_distinct;
    return;
  }
  for (int64_t d = 0; d < part.num_distinct; ++d) {
    uint32_t slot = part.slots[d];
    const PlacedKey& key = part.keys[part.firsts[d]];
    if (!handles_hold &&
        !shard(s).rows().Header(slot)->Is(key.feature, key.id)) {
      slot = shard(s).Find(key);
      if (slot == Shard::kNoSlot) {
        slot = shard(s).Insert(key);
        budget_->ForceReserve(layout_.row_bytes());
      }
    }
    (*place_of)[static_cast<size_t>(d)] = Shard::PlaceOf(
        slot, shard(s).rows().Header(slot), slots->data(), num_slots);
  }
}

void EmbeddingStore::ApplyToShard(int64_t s, const UpdateStep& step) {
  static thread_local Scratch scratch;
  const int64_t dim = layout_.dim();
  scratch.place_of.resize(std::max(scratch.place_of.size(), reports_.size()));
  int64_t num_rows = 0;
  for (size_t r = 0; r < reports_.size(); ++r) {
    Unite(s, *reports_[r].batch, &scratch.slots, &num_rows,
          &scratch.place_of[r]);
  }
  if (num_rows == 0) return;

  scratch.sums.assign(static_cast<size_t>(num_rows * dim), 0.0f);
  int64_t* counts = nullptr;
  if (options_.optimizer.clips()) {
    scratch.counts.assign(static_cast<size_t>(num_rows), 0);
    counts = scratch.counts.data();
  }
  for (size_t r = 0; r < reports_.size(); ++r) {
    const ShardBatch part = reports_[r].batch->OfShard(s);
    const int32_t* place_of = scratch.place_of[r].data();
    scratch.positions.resize(static_cast<size_t>(part.size));
    scratch.places.resize(static_cast<size_t>(part.size));
    int32_t* const positions = scratch.positions.data();
    int32_t* const places = scratch.places.data();
    int64_t n = 0;
    for (int64_t i = 0; i < part.size; ++i) {
      if (part.places[i] < 0) continue;  // Refused by admission.
      const int32_t place = place_of[part.places[i]];
      positions[n] = part.keys[i].position;
      places[n++] = place;
      if (counts != nullptr) counts[place] += part.keys[i].count;
    }
    kernels_.accumulate(reports_[r].gradient.values, positions, places, n, dim,
                        scratch.sums.data());
  }

  const RamTier::View rows = shard(s).rows().view();
  scratch.rows.resize(static_cast<size_t>(num_rows));
  for (int64_t i = 0; i < num_rows; ++i) {
    const auto at = static_cast<size_t>(i);
    scratch.rows[at] = rows.Row(scratch.slots[at]);
  }
  if (shard(s).saves()) {
    for (int64_t i = 0; i < num_rows; ++i) {
      shard(s).SaveIfNeeded(scratch.slots[static_cast<size_t>(i)]);
    }
  }
  scratch.newly_dirty.resize(static_cast<size_t>(num_rows));
  const UpdateStep marked = {step.learning_rate, step.number, shard(s).mark()};
  const RowKernels::Changes changes = kernels_.update(
      options_.optimizer, marked, dim, scratch.rows.data(), scratch.sums.data(),
      counts, num_rows, scratch.newly_dirty.data());
  updated_rows_ += num_rows;
  clipped_rows_ += changes.clipped;
  shard(s).CountChanged(changes.newly_known, scratch.slots.data(),
                        scratch.newly_dirty.data(), changes.num_newly_dirty);
}

}  // namespace tfctr
