// What each call of a store does, by example. Steps of several lookups, byte
// budgets, export and import have files of their own.

#include "tfctr_ops/cc/store/embedding_store.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/test_store.h"

namespace tfctr {
namespace {

using testing::Keys;
using testing::LookupResult;
using testing::SmallOptions;
using testing::Table;
using testing::TableRow;
using testing::TestStore;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;

constexpr int64_t kLeastId = std::numeric_limits<int64_t>::min();
constexpr int64_t kGreatestId = std::numeric_limits<int64_t>::max();

TEST(AnUnseenKeyReadsTheDefaultRowAndStaysUnseen) {
  StoreOptions options = SmallOptions(2);
  options.default_row = {0.25f, -0.5f};
  const TestStore store(options);
  CHECK_EQ(store.Read({{7, 8, 7}}),
           (Floats{0.25f, -0.5f, 0.25f, -0.5f, 0.25f, -0.5f}));
  CHECK_EQ(store.Stats().rows, 0);
}

TEST(ATrainingLookupInsertsUnseenKeysWithTheirInitialRows) {
  StoreOptions options = SmallOptions(3);
  options.initializer = {RowInitializer::Kind::kUniform, -1.0f, 2.0f};
  const TestStore store(options);
  const Keys keys({7, 8, 7, kLeastId}, {0, 2});
  const Floats rows = store.Lookup(keys).rows;
  for (size_t i = 0; i < 4; ++i) {
    const auto [feature, id] = keys[i];
    Floats expected(3);
    options.initializer.Fill(
        options.feature_seeds[static_cast<size_t>(feature)], id, 3,
        expected.data());
    CHECK_EQ(Floats(rows.begin() + static_cast<int64_t>(i) * 3,
                    rows.begin() + static_cast<int64_t>(i) * 3 + 3),
             expected);
  }
  CHECK_EQ(store.Stats().rows, 3);  // (0, 7), (2, 8), (2, kLeastId).
  CHECK_EQ(store.Stats().known_rows, 0);
}

TEST(AKeyThatWasNeverUpdatedReadsTheDefaultRow) {
  const TestStore store(SmallOptions(1));
  CHECK_EQ(store.Lookup({{5}}).rows, Floats{1});
  CHECK_EQ(store.Read({{5}}), Floats{0});
  CHECK_EQ(store.Lookup({{5}}).rows, Floats{1});
}

TEST(AnUpdatedKeyReadsWhatItLearned) {
  const TestStore store(SmallOptions(2));
  CHECK_EQ(store.Train({{5, 6}}, {1, 2, 3, 4}, 0.5f), 1);
  CHECK_EQ(store.Read({{6, 5, 9}}), (Floats{-0.5f, -1, 0.5f, 0, 0, 0}));
  CHECK_EQ(store.Lookup({{6, 5, 9}}).rows, (Floats{-0.5f, -1, 0.5f, 0, 1, 1}));
}

TEST(GradientsOfEqualKeysAreSummedBeforeTheUpdate) {
  StoreOptions options = SmallOptions(1, Kind::kAdagrad);
  options.optimizer.initial_accumulator = 0.0f;
  options.optimizer.epsilon = 0.0f;
  const TestStore store(options);
  store.Train({{5, 6, 5, 5}}, {1, 7, 2, -6}, 0.5f);
  // The accumulator is (1 + 2 - 6)^2, not 1^2 + 2^2 + 6^2.
  const Table table = store.Export();
  CHECK_EQ(table.at({0, 5}), (TableRow{{1.5f, 9}, 1, 1}));
  CHECK_EQ(table.at({0, 6}), (TableRow{{0.5f, 49}, 1, 1}));
}

TEST(GradientsOfEqualKeysAreSummedInTheOrderOfTheBatch) {
  const TestStore store(SmallOptions(1));
  // In single precision 1e8 + 1 is 1e8, so only this order gives 1.
  store.Train({{5, 6, 5, 6, 5, 6}}, {1e8f, 1, -1e8f, 1e8f, 1, -1e8f}, 1.0f);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{0, 1}));
}

TEST(EqualIdsOfDifferentFeaturesAreDifferentKeys) {
  const TestStore store(SmallOptions(1));
  store.Train({{5, 5, 5}, {0, 1, 2}}, {1, 2, 3}, 1.0f);
  CHECK_EQ(store.Read({{5, 5, 5}, {2, 1, 0}}), (Floats{-2, -1, 0}));
  CHECK_EQ(store.Stats().rows, 3);
}

TEST(EveryInt64IsAnId) {
  const TestStore store(SmallOptions(1));
  const Keys keys({kLeastId, -1, 0, 1, kGreatestId});
  store.Train(keys, {1, 2, 3, 4, 5}, 1.0f);
  CHECK_EQ(store.Read(keys), (Floats{0, -1, -2, -3, -4}));
  CHECK_EQ(store.Export().size(), size_t{5});
}

TEST(AnAbsentKeyReadsZerosAndTakesNoGradient) {
  StoreOptions options = SmallOptions(2);
  options.default_row = {9, 9};
  const TestStore store(options);
  const Keys keys({5, 6, 7, 8}, {0, -1});
  CHECK_EQ(store.Read(keys), (Floats{9, 9, 0, 0, 9, 9, 0, 0}));
  const LookupResult found = store.Lookup(keys);
  CHECK_EQ(found.rows, (Floats{1, 1, 0, 0, 1, 1, 0, 0}));
  CHECK_EQ(found.ticket->num_keys(), 4);
  store.Update(found.ticket, Floats(8, 1), 1.0f);
  CHECK_EQ(store.Read(keys), (Floats{0, 0, 0, 0, 0, 0, 0, 0}));
  CHECK_EQ(store.Stats().rows, 2);
  store.Write(keys, Floats(8, 3));
  CHECK_EQ(store.Stats().rows, 2);
  CHECK_EQ(store.Remove({{6, 8}, {-1}}), 0);
}

TEST(AnEmptyBatchIsFine) {
  const TestStore store(SmallOptions(2));
  const Keys none(std::vector<int64_t>{});
  CHECK_EQ(store.Read(none), Floats());
  const LookupResult found = store.Lookup(none);
  CHECK_EQ(found.rows, Floats());
  CHECK_EQ(store.Update(found.ticket, {}, 0.1f), 1);
  store.Write(none, {});
  CHECK_EQ(store.Remove(none), 0);
  CHECK_EQ(store.Export(), Table());
}

TEST(RowsWithoutAGradientDoNotMove) {
  StoreOptions options = SmallOptions(1, Kind::kAdam);
  options.optimizer.weight_decay = 0.5f;
  const TestStore store(options);
  store.Train({{5, 6}}, {1, 1}, 0.1f);
  const TableRow six = store.Export().at({0, 6});
  for (int i = 0; i < 3; ++i) store.Train({{5}}, {1}, 0.1f);
  CHECK_EQ(store.Export().at({0, 6}), six);
}

TEST(AdamCorrectsItsBiasByTheStepOfTheStore) {
  const TestStore store(SmallOptions(1, Kind::kAdam));
  store.Train({{5}}, {1}, 0.1f);
  store.Train({{6}}, {1}, 0.1f);
  const SparseOptimizer& o = store->options().optimizer;
  const double m = 1 - o.beta_1;
  const double v = 1 - o.beta_2;
  const double rate =
      0.1f * std::sqrt(1 - o.beta_2 * o.beta_2) / (1 - o.beta_1 * o.beta_1);
  CHECK_NEAR(store.Read({{6}})[0], 1 - rate * m / (std::sqrt(v) + o.epsilon),
             1e-6);
}

TEST(AdamCanCorrectItsBiasByTheUpdatesOfTheRow) {
  StoreOptions options = SmallOptions(1, Kind::kAdam);
  options.optimizer.per_row_bias_correction = true;
  const TestStore store(options);
  store.Train({{5}}, {1}, 0.1f);
  store.Train({{6}}, {1}, 0.1f);
  CHECK_EQ(store.Read({{6}}), store.Read({{5}}));
  // The first step of Adam is one learning rate long.
  CHECK_NEAR(store.Read({{6}})[0], 0.9, 1e-6);
}

TEST(WriteSetsWeightsAndInsertsUnseenKeys) {
  const TestStore store(SmallOptions(2));
  store.Lookup({{5}});
  store.Write({{5, 6}}, {1, 2, 3, 4});
  CHECK_EQ(store.Read({{6, 5}}), (Floats{3, 4, 1, 2}));
  CHECK_EQ(store.Lookup({{6, 5}}).rows, (Floats{3, 4, 1, 2}));
  CHECK_EQ(store.Stats().known_rows, 2);
  CHECK_EQ(store->step(), 0);
}

TEST(WriteKeepsSlotsAndCounters) {
  const TestStore store(SmallOptions(1, Kind::kAdagrad));
  store.Train({{5}}, {2}, 0.1f);
  const TableRow before = store.Export().at({0, 5});
  store.Write({{5}}, {7});
  CHECK_EQ(store.Export().at({0, 5}),
           (TableRow{{7, before.floats[1]}, before.last_step, before.count}));
}

TEST(OfEqualKeysTheLastOneWritten) {
  const TestStore store(SmallOptions(1));
  store.Write({{5, 6, 5, 5}}, {1, 2, 3, 4});
  CHECK_EQ(store.Read({{5, 6}}), (Floats{4, 2}));
}

TEST(WriteRefusesWeightsThatAreNotFinite) {
  const TestStore store(SmallOptions(1));
  store.Write({{5}}, {1});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const float weights[] = {2, bad};
    const Status status = store->Write(Keys({5, 6}), weights, store.executor());
    CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
    CHECK_EQ(status.message(),
             "Table 'ads' takes finite weights only. Received: weights with "
             "NaN or infinity. No row was changed.");
    CHECK_EQ(store.Read({{5, 6}}), (Floats{1, 0}));
    CHECK_EQ(store.Stats().rows, 1);
  }
  store.Write({{5}}, {std::numeric_limits<float>::max()});
}

TEST(RemovedKeysStartAfresh) {
  const TestStore store(SmallOptions(1, Kind::kAdagrad));
  store.Train({{5, 6}}, {1, 1}, 0.5f);
  const TableRow six = store.Export().at({0, 6});
  CHECK_EQ(store.Remove({{5, 9, 5}}), 1);
  CHECK_EQ(store.Read({{5}}), Floats{0});
  CHECK_EQ(store.Export(), (Table{{{0, 6}, six}}));
  CHECK_EQ(store.Lookup({{5}}).rows, Floats{1});
  store.Write({{5}}, {3});
  CHECK_EQ(store.Export().at({0, 5}), (TableRow{{3, 0.1f}, 0, 0}));
}

TEST(RemoveDoesNotCountRowsThatWereNeverUpdated) {
  const TestStore store(SmallOptions(1));
  store.Lookup({{5, 6}});
  CHECK_EQ(store.Remove({{5, 6, 7}}), 0);
  CHECK_EQ(store.Stats().rows, 0);
  CHECK_EQ(store.Remove({{5, 6, 7}}), 0);
}

TEST(ABadFeatureIsNamedAndNothingChanges) {
  const TestStore store(SmallOptions(1));
  store.Train({{5, 6}}, {1, 1}, 0.5f);
  const Table before = store.Export();
  const int64_t num_rows = store.Stats().rows;
  const Keys keys({1000, 1001}, {0, 3});
  Floats rows(2);
  int64_t removed = -1;
  Table bad = {{{0, 5}, {{1}, 1, 1}}, {{3, 5}, {{1}, 1, 1}}};
  for (const Status& status : {
           store->Read(keys, store.executor(), rows.data()),
           store.TryLookup(keys),
           store->Write(keys, rows.data(), store.executor()),
           store->Remove(keys, store.executor(), &removed),
           store.TryImport(bad, 99),
       }) {
    CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
    CHECK_EQ(status.message(),
             "`features` must lie in [0, 3), or be -1 for an absent key. "
             "Received: 3.");
  }
  CHECK_EQ(store.Export(), before);
  CHECK_EQ(store.Stats().rows, num_rows);
  CHECK_EQ(store->step(), 1);
}

TEST(StatsCountWhatTheStoreHolds) {
  const TestStore store(SmallOptions(3, Kind::kAdagrad));
  StoreStats stats = store.Stats();
  CHECK_EQ(stats.rows, 0);
  CHECK_EQ(stats.known_rows, 0);
  CHECK_EQ(stats.row_bytes, store->layout().row_bytes());
  CHECK_EQ(stats.step, 0);

  store.Lookup({{1, 2, 3, 2}});
  store.Train({{1}}, {1, 1, 1}, 0.1f);
  store.Train({{1}}, {1, 1, 1}, 0.1f);
  store.Write({{2, 9}}, Floats(6, 1));
  store.Remove({{2}});
  stats = store.Stats();
  CHECK_EQ(stats.rows, 3);        // 1, 3 and 9.
  CHECK_EQ(stats.known_rows, 2);  // 1 and 9.
  CHECK_EQ(stats.step, 2);
  CHECK_EQ(stats.evicted_rows, 0);
  CHECK_EQ(stats.skipped_updates, 0);
  CHECK_GE(stats.memory_bytes, stats.rows * stats.row_bytes);
}

TEST(StatsCountTheRowsOfLookupsByWhereTheyWere) {
  const TestStore store(SmallOptions(1));
  store.Write({{1, 2}}, Floats(2, 1));
  store.Read({{1, 2, 3}});
  CHECK_EQ(store.Stats().found_rows + store.Stats().inserted_rows, 0);
  store.Lookup({{1, 3, 3, 1, 4}});
  CHECK_EQ(store.Stats().found_rows, 1);
  CHECK_EQ(store.Stats().inserted_rows, 2);
  store.Lookup({{1, 3, 3, 5}});
  CHECK_EQ(store.Stats().found_rows, 3);
  CHECK_EQ(store.Stats().inserted_rows, 3);
  CHECK_EQ(store.Stats().promoted_rows, 0);
  CHECK_EQ(store.Stats().stalled_lookups, 0);
}

TEST(AMillionRowsTakeLittleMoreThanTheirBytes) {
  const TestStore store(SmallOptions(16, Kind::kAdagrad));
  Keys keys({});
  for (int64_t id = 0; id < 1000000; ++id) {
    keys.ids.push_back(id * 1000003);
    if (keys.size() == 50000) {
      store.Lookup(keys);
      keys.ids.clear();
    }
  }
  const StoreStats stats = store.Stats();
  CHECK_EQ(stats.rows, 1000000);
  CHECK_LE(static_cast<double>(stats.memory_bytes),
           1.3 * static_cast<double>(stats.rows * stats.row_bytes));
}

}  // namespace
}  // namespace tfctr
