// Thousands of random calls of a store equal the same calls of a std::map whose
// rows are updated one float at a time.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/store_model.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::kEvictionPolicies;
using testing::Key;
using testing::Keys;
using testing::LookupResult;
using testing::Random;
using testing::SmallOptions;
using testing::StoreModel;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Kind = SparseOptimizer::Kind;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  StoreOptions options;
  int num_threads;
  int64_t room;      // In rows; -1 without a limit.
  double tolerance;  // Relative to 1 + |expected|; 0: the very same number.
  // With an SSD tier: rows that memory takes, while the table has no limit.
  int64_t ram_rows = -1;
  bool has_counts = false;  // Whether keys count otherwise than once.
};

// One store, its model, and the lookups whose gradients have not come.
class Session {
 public:
  Session(const Case& c, uint64_t seed)
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
  void CheckNear(const Floats& got, const Doubles& expected) const {
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
    Floats gradient =
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
          random_.Below(static_cast<int64_t>(gradient.size())))] = kNaN;
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
    const Floats weights =
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

  const Case case_;
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

Floats InitialWeights(const StoreOptions& options, const Key& key) {
  Floats weights(static_cast<size_t>(options.dim));
  options.initializer.Fill(
      options.feature_seeds[static_cast<size_t>(key.first)], key.second,
      options.dim, weights.data());
  return weights;
}

// Initial rows at random, and a default row that no other is equal to.
Case NewCase(Kind kind, int64_t dim, int shard_bits, double tolerance) {
  Case c = {SmallOptions(dim, kind), 1, -1, tolerance};
  c.options.initializer = {RowInitializer::Kind::kNormal, 0.0f, 0.5f};
  c.options.default_row.assign(static_cast<size_t>(dim), 17.0f);
  c.options.shard_bits = shard_bits;
  return c;
}

constexpr int kNumCalls = 3000;

TEST(SgdEqualsTheModelToTheBit) {
  Session(NewCase(Kind::kSgd, 3, 0, 0), 1).Run(kNumCalls);
  Case c = NewCase(Kind::kSgd, 1, 6, 0);
  c.num_threads = 3;
  Session(c, 2).Run(kNumCalls);
}

TEST(AdagradEqualsTheModelToTheBit) {
  Case c = NewCase(Kind::kAdagrad, 5, 3, 0);
  c.num_threads = 4;
  Session(c, 3).Run(kNumCalls);
  c.options.skip_bad_gradients = true;
  c.num_threads = 1;
  Session(c, 4).Run(kNumCalls);
}

TEST(AFullStoreEqualsTheModel) {
  for (const int64_t room : {0, 20, 80}) {
    Case c = NewCase(Kind::kAdagrad, 4, 2, 0);
    c.room = room;
    c.num_threads = 2;
    Session(c, 5).Run(kNumCalls);
  }
}

// Whatever fits into memory, far less than a batch included: with an SSD tier
// the table is the same to the bit.
void RunOverSsd(Case c, int64_t ram_rows, int64_t limit_bytes, uint64_t seed,
                int num_calls = kNumCalls) {
  const TemporaryDirectory directory;
  c.options.ssd.directory = directory.path();
  c.options.ssd.limit_bytes = limit_bytes;
  c.ram_rows = ram_rows;
  Session(c, seed).Run(num_calls);
}

TEST(OverAnSsdTierTheTableEqualsTheModelToTheBit) {
  uint64_t seed = 100;
  for (const int64_t ram_rows : {0, 3, 30, 300, 20000}) {
    for (const int shard_bits : {0, 3}) {
      Case c = NewCase(Kind::kAdagrad, 4, shard_bits, 0);
      c.options.eviction_policy = EvictionPolicy::kClock;
      RunOverSsd(c, ram_rows, -1, seed++);
      c.num_threads = 3;
      c.options.skip_bad_gradients = true;
      RunOverSsd(c, ram_rows, int64_t{64} << 20, seed++);
    }
  }
}

using Change = std::function<void(StoreOptions*)>;

// In memory alone, and over an SSD tier with room for any number of rows.
void RunEverywhere(const Change& change, uint64_t seed,
                   bool has_counts = false) {
  const std::pair<int64_t, int> settings[] = {
      {-1, 1}, {-1, 4}, {0, 2}, {30, 1}, {30, 4}};  // Rows and threads.
  for (const auto& [ram_rows, num_threads] : settings) {
    Case c = NewCase(Kind::kAdagrad, 3, num_threads, 0);
    change(&c.options);
    c.num_threads = num_threads;
    c.has_counts = has_counts;
    if (ram_rows >= 0) {
      c.options.eviction_policy = EvictionPolicy::kClock;
      RunOverSsd(c, ram_rows, -1, seed++, kNumCalls / 3);
    } else {
      Session(c, seed++).Run(kNumCalls);
    }
  }
}

TEST(AdmissionByCountEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 4;
      },
      200);
}

TEST(AdmissionByBloomFilterEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kBloom;
        options->admission.min_count = 4;
        // So large that no key is taken for another.
        options->admission.expected_keys = 20000;
        options->admission.false_positive_rate = 1e-7;
      },
      220);
}

TEST(AdmissionByProbabilityEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kProbability;
        options->admission.probability = 0.1;
      },
      240);
}

TEST(AFullStoreWithAdmissionEqualsTheModel) {
  for (const int64_t room : {0, 20, 80}) {
    Case c = NewCase(Kind::kAdagrad, 4, 2, 0);
    c.options.admission.kind = AdmissionOptions::Kind::kCount;
    c.options.admission.min_count = 3;
    c.room = room;
    c.num_threads = 2;
    Session(c, 260).Run(kNumCalls);
  }
}

TEST(ExpiryEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {3, 10, 0.0, -1}; }, 300);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {2, -1, 0.6, -1}; }, 320);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {1, -1, 0.0, 25}; }, 340);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {0, 20, 0.3, 40}; }, 360);
}

TEST(AdmissionAndExpiryTogetherEqualTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 3;
        options->expiry = {2, 15, 0.2, 30};
      },
      380);
}

// Of two weights, whose squares are summed in one order only.
void ClipTwoWeights(StoreOptions* options) {
  options->dim = 2;
  options->default_row.resize(2);
  options->optimizer.clip_ratio = 0.5f;
  options->optimizer.clip_floor = 0.1f;
  options->optimizer.l2_penalty = 0.01f;
}

TEST(ClippingEqualsTheModelToTheBit) {
  RunEverywhere(ClipTwoWeights, 400, /*has_counts=*/true);
}

TEST(ClippingWithAdmissionEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        ClipTwoWeights(options);
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 4;
      },
      440, /*has_counts=*/true);
}

TEST(WhichRowsAreEvictedChangesNoTableOverAnSsdTier) {
  uint64_t seed = 200;
  for (const EvictionPolicy policy :
       {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    for (const int64_t ram_rows : {0, 30, 300}) {
      Case c = NewCase(Kind::kAdagrad, 4, ram_rows == 30 ? 0 : 3, 0);
      c.options.eviction_policy = policy;
      c.num_threads = 2;
      RunOverSsd(c, ram_rows, int64_t{64} << 20, seed++);
    }
  }
}

// The rest rounds otherwise than the model, in each of the few hundred updates
// of a row.
constexpr double kTolerance = 1e-5;

TEST(RowwiseAdagradEqualsTheModel) {
  Session(NewCase(Kind::kRowwiseAdagrad, 17, 3, kTolerance), 6).Run(kNumCalls);
}

TEST(AdamEqualsTheModel) {
  Case c = NewCase(Kind::kAdam, 2, 4, kTolerance);
  c.num_threads = 2;
  Session(c, 7).Run(kNumCalls);
  c.options.optimizer.per_row_bias_correction = true;
  c.options.optimizer.weight_decay = 0.1f;
  c.options.optimizer.epsilon = 1e-3f;
  Session(c, 8).Run(kNumCalls);
}

TEST(FtrlEqualsTheModel) {
  // The linear term sums numbers that are 1 / learning_rate times as large.
  Case c = NewCase(Kind::kFtrl, 3, 1, 10 * kTolerance);
  Session(c, 9).Run(kNumCalls);
  c.options.optimizer.l1 = 0.1f;
  c.options.optimizer.l2 = 0.2f;
  c.options.optimizer.l2_shrinkage = 0.05f;
  c.options.optimizer.beta = 0.5f;
  c.options.optimizer.learning_rate_power = -0.6f;
  c.num_threads = 2;
  Session(c, 10).Run(kNumCalls);
}

// Which rows leave is the store's affair, but a key reads what it learned or
// starts afresh: nothing else, ever.
void RunUnderEviction(EvictionPolicy policy) {
  Case c = NewCase(Kind::kSgd, 2, 3, 0);
  c.options.eviction_policy = policy;
  const int64_t row_bytes = RowLayout(2, 0).row_bytes();
  for (const int64_t room : {0, 5, 30, 100}) {
    const auto budget = std::make_shared<MemoryBudget>(room * row_bytes);
    ThreadExecutor executor(2);
    const TestStore store(c.options, budget, &executor);
    Random random(11);
    std::map<Key, Floats> learned;
    for (int step = 0; step < 400; ++step) {
      // The second lookup may drive out rows of the first.
      std::vector<std::pair<Keys, LookupResult>> lookups;
      std::map<Key, Floats> looked_up;
      for (int i = 0; i < 2; ++i) {
        Keys keys({}, {0, 2});
        for (int j = 0; j < 20; ++j) keys.ids.push_back(random.Below(60));
        const LookupResult found = store.Lookup(keys);
        for (size_t j = 0; j < keys.ids.size(); ++j) {
          const auto row = found.rows.begin() + static_cast<int64_t>(j) * 2;
          const Floats got(row, row + 2);
          const auto it = learned.find(keys[j]);
          if (it == learned.end() || got != it->second) {
            CHECK_EQ(got, InitialWeights(c.options, keys[j]));
            learned.erase(keys[j]);
          }
          looked_up[keys[j]] = got;
        }
        CHECK_LE(budget->used_bytes(), std::max<int64_t>(room, 20) * row_bytes);
        lookups.emplace_back(keys, found);
      }
      std::map<Key, Floats> sums;
      for (const auto& [keys, found] : lookups) {
        const Floats gradient = random.Uniforms(40, -1.0f, 1.0f);
        for (size_t j = 0; j < keys.ids.size(); ++j) {
          Floats& sum = sums[keys[j]];
          sum.resize(2, 0.0f);
          for (size_t d = 0; d < 2; ++d) sum[d] += gradient[j * 2 + d];
        }
        store.Update(found.ticket, gradient, 0.5f);
      }
      const Table table = store.Export();
      for (const auto& [key, sum] : sums) {
        const auto moved = [&, gradient = sum](const Floats& from) {
          return Floats{from[0] - 0.5f * gradient[0],
                        from[1] - 0.5f * gradient[1]};
        };
        const Floats& got = table.at(key).floats;
        if (got != moved(looked_up.at(key))) {
          CHECK_EQ(got, moved(InitialWeights(c.options, key)));
        }
        learned[key] = got;
      }
      for (const auto& [key, row] : table)
        CHECK_EQ(row.floats, learned.at(key));
    }
    if (room < 100) CHECK_GT(store.Stats().evicted_rows, 100);
  }
}

TEST(UnderEvictionAKeyReadsWhatItLearnedOrItsInitialRow) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    RunUnderEviction(policy);
  }
}

}  // namespace
}  // namespace tfctr
