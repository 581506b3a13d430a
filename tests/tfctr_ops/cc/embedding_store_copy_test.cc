// Export and import: whole tables out of and into a store.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::Key;
using testing::Keys;
using testing::OverSsd;
using testing::SmallOptions;
using testing::Table;
using testing::TableRow;
using testing::TestStore;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;

TEST(ExportHandsOutKnownRowsWithSlotsAndCounters) {
  StoreOptions options = SmallOptions(1, Kind::kFtrl);
  options.optimizer.initial_accumulator = 0.5f;
  const TestStore store(options);
  store.Lookup({{1, 2, 3}});
  store.Train({{2}}, {0}, 0.1f);
  store.Train({{2, 4}, {0, 1}}, {0, 0}, 0.1f);
  store.Write({{9}, {2}}, {7});
  const Table table = store.Export();
  CHECK_EQ(table.size(), size_t{3});
  CHECK_EQ(table.at({0, 2}).count, 2);
  CHECK_EQ(table.at({0, 2}).last_step, 2);
  CHECK_EQ(table.at({1, 4}).count, 1);
  CHECK_EQ(table.at({1, 4}).last_step, 2);
  CHECK_EQ(table.at({1, 4}).floats[1], 0.5f);
  // Never updated.
  CHECK_EQ(table.at({2, 9}), (TableRow{{7, 0.5f, 0}, 0, 0}));
}

TEST(ExportReturnsTheErrorOfAllocate) {
  const TestStore store(SmallOptions(1));
  store.Write({{5, 6}}, {1, 2});
  int64_t num_rows = -1;
  const Status status =
      store->Export(store.executor(), [&](int64_t n, RowArrays*) {
        num_rows = n;
        return Status::ResourceExhausted("No memory for rows.");
      });
  CHECK_EQ(num_rows, 2);
  CHECK_EQ(status.code(), StatusCode::kResourceExhausted);
  CHECK_EQ(status.message(), "No memory for rows.");
  CHECK_EQ(store.Read({{5, 6}}), (Floats{1, 2}));
}

TEST(VisitShowsEachKnownRowOnceWhereverItIs) {
  testing::TemporaryDirectory scratch;
  const StoreOptions options =
      OverSsd(SmallOptions(2, Kind::kAdagrad), scratch.path());
  const auto budget = std::make_shared<MemoryBudget>(4096);
  const TestStore store(options, budget);
  std::map<int64_t, Floats> expected;
  for (int64_t id = 0; id < 500; ++id) {
    const auto x = static_cast<float>(id);
    store.Write({{id}}, {x, -x});
    expected[id] = {x, -x};
  }
  store.Lookup({{1000}});  // Not known yet.
  CHECK(store.Stats().rows_on_disk_only > 0);
  std::map<int64_t, Floats> shown;
  CHECK_OK(store->Visit(store.executor(), [&](int64_t id, const float* row) {
    CHECK(shown.emplace(id, Floats{row[0], row[1]}).second);
  }));
  CHECK(shown == expected);
}

// Some rows of every feature, trained and written.
void Fill(const TestStore& store) {
  for (int64_t step = 0; step < 5; ++step) {
    Floats gradient;
    Keys keys({}, {0, 1, 2});
    for (int64_t i = 0; i < 60; ++i) {
      keys.ids.push_back(i * step);
      for (int64_t c = 0; c < store.dim(); ++c) {
        gradient.push_back(static_cast<float>(i - c) / 16);
      }
    }
    store.Train(keys, gradient, 0.1f);
  }
  store.Write({{-5, -6}, {1}}, Floats(static_cast<size_t>(2 * store.dim()), 4));
}

TEST(AnImportedTableGoesOnAsTheOriginal) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kRowwiseAdagrad,
                          Kind::kAdam, Kind::kFtrl}) {
    const TestStore original(SmallOptions(3, kind));
    Fill(original);
    const Table table = original.Export();
    for (const int shard_bits : {0, 2, 6}) {
      StoreOptions options = SmallOptions(3, kind);
      options.shard_bits = shard_bits;
      const TestStore copy(options);
      copy.Train({{1, 777}}, Floats(6, 1), 0.1f);  // Rows that must go.
      copy.Import(table, original->step());
      CHECK_EQ(copy->step(), 5);
      CHECK_EQ(copy.Export(), table);
      CHECK_EQ(copy.Read({{777}}), (Floats{0, 0, 0}));
      Fill(copy);
      TestStore again(SmallOptions(3, kind));
      again.Import(table, original->step());
      Fill(again);
      CHECK_EQ(copy.Export(), again.Export());
      CHECK_EQ(copy->step(), 10);
    }
    Fill(original);
    TestStore copy(SmallOptions(3, kind));
    copy.Import(table, 5);
    Fill(copy);
    CHECK_EQ(copy.Export(), original.Export());
  }
}

TEST(ImportingNothingEmptiesTheStore) {
  const TestStore store(SmallOptions(2));
  Fill(store);
  store.Import({}, 0);
  CHECK_EQ(store.Export(), Table());
  CHECK_EQ(store.Stats().rows, 0);
  CHECK_EQ(store->step(), 0);
  CHECK_EQ(store.Train({{5}}, {1, 1}, 0.5f), 1);
  CHECK_EQ(store.Read({{5}}), (Floats{0.5f, 0.5f}));
}

TEST(ImportRefusesRowsThatExportWouldNotGive) {
  const TestStore store(SmallOptions(1));
  Fill(store);
  const Table before = store.Export();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    Key key;
    TableRow row;
    int64_t step;
  } bad_rows[] = {
      {{-1, 7}, {{1}, 1, 1}, 1},        {{0, 7}, {{nan}, 1, 1}, 1},
      {{0, 7}, {{-infinity}, 1, 1}, 1}, {{0, 7}, {{1}, 2, 1}, 1},
      {{0, 7}, {{1}, -1, 1}, 1},        {{0, 7}, {{1}, 0, -1}, 1},
      {{0, 7}, {{1}, 0, 0}, -1},
  };
  for (const auto& bad : bad_rows) {
    const Status status =
        store.TryImport({{{0, 6}, {{1}, 0, 0}}, {bad.key, bad.row}}, bad.step);
    CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
    CHECK_EQ(status.message(),
             "Table 'ads' takes rows as it gave them: features and counters "
             "not negative, last steps up to the step, finite numbers. "
             "Received: other rows, with step=" +
                 std::to_string(bad.step) + ". The table is as it was.");
    CHECK_EQ(store.Export(), before);
    CHECK_EQ(store->step(), 5);
  }
}

}  // namespace
}  // namespace tfctr
