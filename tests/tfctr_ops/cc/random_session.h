// RandomSession: random calls of a store, and the same calls of its model, a
// std::map whose rows are updated one float at a time.

#ifndef TESTS_TFCTR_OPS_CC_RANDOM_SESSION_H_
#define TESTS_TFCTR_OPS_CC_RANDOM_SESSION_H_

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/store_model.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace testing {

struct RandomCase {
  StoreOptions options;
  int num_threads;
  int64_t room;      // In rows; -1 without a limit.
  double tolerance;  // Relative to 1 + |expected|; 0: the very same number.
  // With an SSD tier: rows that memory takes, while the table has no limit.
  int64_t ram_rows = -1;
  bool has_counts = false;  // Whether keys count otherwise than once.
};

// One store, its model, and the lookups whose gradients have not come.
class RandomSession {
 public:
  RandomSession(const RandomCase& c, uint64_t seed)
      : case_(c),
        executor_(c.num_threads),
        model_(c.options, c.room),
        store_(NewStore(c.options.shard_bits)),
        random_(seed) {}

  void Run(int num_calls) {
    for (int i = 0; i < num_calls; ++i) {
      const int64_t die = random_.Below(100);
      if (die < 35) {
        if (open_.size() < 5) Lookup();
      } else if (die < 68) {
        if (!open_.empty()) Update();
      } else if (die < 71) {
        if (!open_.empty()) TakeOpen();  // And drop it.
      } else if (die < 80) {
        Write();
      } else if (die < 81) {
        MaybeExpire();
      } else if (die < 82) {
        CHECK_OK(store_->Prefetch(AnyKeys(), store_.executor()));
      } else if (die < 88) {
        const Keys keys = AnyKeys();
        CheckNear(store_.Read(keys), model_.Read(keys));
      } else if (die < 95) {
        const Keys keys = SomeKeys(20);
        CHECK_EQ(store_.Remove(keys), model_.Remove(keys));
      } else if (die < 96) {
        MaybeSave();
      } else if (die < 97) {
        CheckStats();
      } else if (die < 99) {
        CheckTable();
      } else {
        Move();
      }
    }
    CheckStats();
    CheckTable();
  }

 private:
  struct OpenLookup {
    std::shared_ptr<Ticket> ticket;
    Keys keys;
    int64_t sequence;
    bool is_stale;  // From before an import: its gradient is dropped.
  };

  // Now and then a batch for several threads.
  Keys AnyKeys() { return SomeKeys(random_.Below(150) == 0 ? 9000 : 40); }

  // At most `max` keys: mostly old acquaintances, some absent.
  Keys SomeKeys(int64_t max) {
    Keys keys({}, {});
    const int64_t period = 1 + random_.Below(3);
    for (int64_t i = 0; i < period; ++i) {
      keys.features.push_back(static_cast<int32_t>(random_.Below(4)) - 1);
    }
    const int64_t n = random_.Below(max / period + 1) * period;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t die = random_.Below(20);
      keys.ids.push_back(die == 0   ? std::numeric_limits<int64_t>::min()
                         : die == 1 ? std::numeric_limits<int64_t>::max()
                         : die < 5  ? random_.Below(3 * max)
                                    : random_.Below(30) - 10);
      if (!case_.has_counts) continue;
      keys.counts.push_back(static_cast<int32_t>(random_.Below(4)));
    }
    return keys;
  }

  TestStore NewStore(int shard_bits) {
    StoreOptions options = case_.options;
    options.shard_bits = shard_bits;
    const int64_t row_bytes =
        RowLayout(options.dim, options.optimizer.NumSlotFloats(options.dim))
            .row_bytes();
    const int64_t room = case_.ram_rows >= 0 ? case_.ram_rows : case_.room;
    budget_ = std::make_shared<MemoryBudget>(room < 0 ? -1 : room * row_bytes);
    return TestStore(options, budget_, &executor_);
  }

  void CheckNear(double got, double expected) const {
    CHECK_NEAR(got, expected, case_.tolerance * (1 + std::fabs(expected)));
  }
  void CheckNear(const std::vector<float>& got,
                 const std::vector<double>& expected) const {
    CHECK_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) CheckNear(got[i], expected[i]);
  }

  void CheckIsFull(const Status& status) const {
    CHECK_EQ(status.code(), StatusCode::kResourceExhausted);
  }

  void Lookup() {
    const Keys keys = AnyKeys();
    if (!model_.TryInsert(keys, /*asks=*/true)) {
      CheckIsFull(store_.TryLookup(keys));
      return;
    }
    const LookupResult found = store_.Lookup(keys);
    CheckNear(found.rows, model_.LookupInserted(keys));
    open_.push_back(
        {found.ticket, model_.Taken(keys), next_sequence_++, false});
  }

  OpenLookup TakeOpen() {
    std::swap(open_[static_cast<size_t>(
                  random_.Below(static_cast<int64_t>(open_.size())))],
              open_.back());
    OpenLookup lookup = std::move(open_.back());
    open_.pop_back();
    return lookup;
  }

  void Update() {
    const OpenLookup lookup = TakeOpen();
    std::vector<float> gradient =
        random_.Uniforms(lookup.keys.size() * case_.options.dim, -1.0f, 1.0f);
    // A step has one learning rate.
    if (!model_.has_reports()) learning_rate_ = random_.Uniform(0.01f, 0.1f);
    if (lookup.is_stale) {
      CHECK_EQ(store_.Update(lookup.ticket, gradient, learning_rate_),
               model_.step());
      return;
    }
    int64_t step = -1;
    if (!gradient.empty() && random_.Below(20) == 0) {
      gradient[static_cast<size_t>(
          random_.Below(static_cast<int64_t>(gradient.size())))] =
          std::numeric_limits<float>::quiet_NaN();
      const Status status =
          store_.TryUpdate(lookup.ticket, gradient, learning_rate_, &step);
      const int64_t expected_step = model_.DropStep();
      if (case_.options.skip_bad_gradients) {
        CHECK_OK(status);
        CHECK_EQ(step, expected_step);
      } else {
        CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
      }
    } else {
      CHECK_EQ(store_.Update(lookup.ticket, gradient, learning_rate_),
               model_.Report(lookup.sequence, lookup.keys, gradient,
                             learning_rate_));
    }
    if (open_.empty()) model_.EndStep();
    CHECK_EQ(store_->step(), model_.step());
  }

  void Write() {
    const Keys keys = AnyKeys();
    const std::vector<float> weights =
        random_.Uniforms(keys.size() * case_.options.dim, -1.0f, 1.0f);
    if (!model_.TryInsert(keys)) {
      CheckIsFull(store_->Write(keys, weights.data(), store_.executor()));
      return;
    }
    store_.Write(keys, weights);
    model_.Write(keys, weights);
  }

  void MaybeExpire() {
    int64_t removed = -1;
    const Status status = store_->Expire(store_.executor(), &removed);
    if (!case_.options.expiry.is_on()) {
      CHECK_EQ(status.code(), StatusCode::kFailedPrecondition);
      return;
    }
    CHECK_OK(status);
    CHECK_EQ(removed, model_.Expire());
  }

  void CheckStats() {
    const StoreStats stats = store_.Stats();
    const std::map<Key, StoreModel::Row> known = model_.KnownRows();
    CHECK_EQ(stats.known_rows, static_cast<int64_t>(known.size()));
    CHECK_EQ(stats.step, model_.step());
    CHECK_EQ(stats.skipped_updates, model_.skipped());
    CHECK_EQ(stats.refused_keys, model_.refused_keys());
    CHECK_EQ(stats.expired_rows, model_.expired_rows());
    CHECK_EQ(stats.updated_rows, model_.updated_rows());
    CHECK_EQ(stats.clipped_rows, model_.clipped_rows());
    CHECK_EQ(budget_->used_bytes(), stats.rows * stats.row_bytes);
    if (case_.ram_rows >= 0) return;
    CHECK_EQ(stats.rows, model_.size());
    CHECK_EQ(stats.evicted_rows, 0);
  }

  void CheckTable() {
    const Table table = store_.Export();
    const std::map<Key, StoreModel::Row> expected = model_.KnownRows();
    CHECK_EQ(table.size(), expected.size());
    for (const auto& [key, row] : expected) {
      const auto it = table.find(key);
      CHECK(it != table.end());
      CheckNear(it->second.floats, row.floats);
      CHECK_EQ(it->second.last_step, row.last_step);
      CHECK_EQ(it->second.count, row.count);
    }
  }

  // Goes on with a copy of the table: in a store of another number of shards,
  // or in the same store, whose open lookups stay open.
  void Move() {
    const Table table = store_.Export();
    const std::string snapshot = MaybeSave();
    model_.EndStep();
    if (!model_.CanImport()) {
      CheckIsFull(store_.TryImport(table, model_.step()));
      return;
    }
    std::vector<char> admission;
    if (random_.Below(2) == 0) {
      CHECK_OK(store_->ExportAdmission(store_.executor(), &admission));
    }
    model_.Import(/*with_admission=*/!admission.empty() || !snapshot.empty());
    if (random_.Below(2) == 0) {
      open_.clear();
      store_ = NewStore(static_cast<int>(random_.Below(7)));
      model_.ForgetStats();
    }
    for (OpenLookup& lookup : open_) lookup.is_stale = true;
    if (snapshot.empty()) {
      store_.Import(table, model_.step());
      CHECK_OK(
          store_->ImportAdmission(admission, {0, 1, 2}, store_.executor()));
    } else {
      CHECK_OK(store_->Restore(snapshot, {0, 1, 2}, {}, store_.executor()));
      std::filesystem::remove_all(snapshot);
    }
  }

  // Now and then saves a snapshot, and returns where.
  std::string MaybeSave() {
    if (random_.Below(2) == 0) return "";
    const std::string path =
        snapshots_.path() + "/" + std::to_string(next_snapshot_++);
    SaveReport report;
    CHECK_OK(store_->Save(path, "", store_.executor(), &report));
    CHECK_EQ(report.rows, static_cast<int64_t>(model_.KnownRows().size()));
    CHECK_LE(report.rows_written, report.rows);
    return path;
  }

  const RandomCase case_;
  ThreadExecutor executor_;
  StoreModel model_;
  std::shared_ptr<MemoryBudget> budget_;
  TestStore store_;
  Random random_;
  std::vector<OpenLookup> open_;
  int64_t next_sequence_ = 0;
  const TemporaryDirectory snapshots_;
  int64_t next_snapshot_ = 0;
  float learning_rate_ = 0;
};

// Initial rows at random, and a default row that no other is equal to.
inline RandomCase NewCase(SparseOptimizer::Kind kind, int64_t dim,
                          int shard_bits, double tolerance) {
  RandomCase c = {SmallOptions(dim, kind), 1, -1, tolerance};
  c.options.initializer = {RowInitializer::Kind::kNormal, 0.0f, 0.5f};
  c.options.default_row.assign(static_cast<size_t>(dim), 17.0f);
  c.options.shard_bits = shard_bits;
  return c;
}

constexpr int kNumCalls = 3000;

// Whatever fits into memory, far less than a batch included: with an SSD tier
// the table is the same to the bit.
inline void RunOverSsd(RandomCase c, int64_t ram_rows, int64_t limit_bytes,
                       uint64_t seed, int num_calls = kNumCalls) {
  const TemporaryDirectory directory;
  c.options.ssd.directory = directory.path();
  c.options.ssd.limit_bytes = limit_bytes;
  c.ram_rows = ram_rows;
  RandomSession(c, seed).Run(num_calls);
}

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_RANDOM_SESSION_H_
