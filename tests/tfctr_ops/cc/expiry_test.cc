// Which rows are removed, wherever they are, and what goes on meanwhile.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::FaultyFileSystem;
using testing::Key;
using testing::Keys;
using testing::OverSsd;
using testing::Random;
using testing::Range;
using testing::RoomFor;
using testing::SmallOptions;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;

StoreOptions Options(const ExpiryOptions& expiry) {
  StoreOptions options = SmallOptions(1);
  options.expiry = expiry;
  return options;
}

int64_t Expire(const TestStore& store) {
  int64_t removed = -1;
  CHECK_OK(store->Expire(store.executor(), &removed));
  return removed;
}

std::vector<int64_t> Ids(const Table& table) {
  std::vector<int64_t> ids;
  for (const auto& [key, row] : table) ids.push_back(key.second);
  return ids;
}

// In memory, and with nearly all rows on disk only.
template <typename Body>
void Everywhere(const ExpiryOptions& expiry, Body body) {
  body(TestStore(Options(expiry)));
  const TemporaryDirectory ssd;
  body(TestStore(OverSsd(Options(expiry), ssd.path()), RoomFor(1)));
}

TEST(RowsLeaveThatWereNotUpdatedForTooLong) {
  Everywhere({0, 2, 0, -1}, [](const TestStore& store) {
    for (int64_t id = 1; id <= 6; ++id) store.Train(Keys({id}), {1}, 0.1f);
    store.Lookup(Keys({1}));  // That is no update.
    CHECK_EQ(Expire(store), 3);
    CHECK_EQ(Ids(store.Export()), (std::vector<int64_t>{4, 5, 6}));
    CHECK_EQ(store.Stats().known_rows, 3);
    CHECK_EQ(store.Stats().expired_rows, 3);
    CHECK_EQ(Expire(store), 0);
    // It starts anew.
    CHECK_EQ(store.Read(Keys({1})), Floats{0.0f});
    CHECK_EQ(store.Lookup(Keys({1})).rows, Floats{1.0f});
  });
}

TEST(RowsLeaveWhoseWeightsAreNearZero) {
  Everywhere({0, -1, 0.5, -1}, [](const TestStore& store) {
    store.Write(Keys({1, 2, 3, 4}), {0.4f, -0.5f, 0.6f, -0.1f});
    CHECK_EQ(Expire(store), 2);
    CHECK_EQ(Ids(store.Export()), (std::vector<int64_t>{2, 3}));
  });
}

TEST(RowsLeaveAboveTheGreatestNumberLongestUnusedFirst) {
  Everywhere({0, -1, 0, 3}, [](const TestStore& store) {
    for (int64_t id = 9; id >= 1; --id) store.Train(Keys({id}), {1}, 0.1f);
    CHECK_EQ(Expire(store), 6);
    CHECK_EQ(Ids(store.Export()), (std::vector<int64_t>{1, 2, 3}));
  });
}

TEST(WhoLeavesOfRowsOfOneAgeDependsOnNothingElse) {
  std::vector<int64_t> expected;
  for (const int shard_bits : {0, 3, 6}) {
    for (const uint64_t shuffle : {1, 2, 3}) {
      StoreOptions options = Options({0, -1, 0, 100});
      options.shard_bits = shard_bits;
      options.salt = shuffle;
      ThreadExecutor executor(static_cast<int>(shuffle));
      const TestStore store(options, testing::NoLimit(), &executor);
      Keys keys = Range(0, 5000);
      Random(shuffle).Shuffle(&keys.ids);
      store.Train(keys, Floats(5000, 1.0f), 0.1f);
      CHECK_EQ(Expire(store), 4900);
      const std::vector<int64_t> ids = Ids(store.Export());
      if (expected.empty()) expected = ids;
      CHECK_EQ(ids, expected);
    }
  }
  // And not the first or last of them.
  int64_t sum = 0;
  for (const int64_t id : expected) sum += id;
  CHECK_NEAR(static_cast<double>(sum) / 100, 2500, 600);
}

TEST(FeaturesWithOneSeedAreToldApart) {
  StoreOptions options = Options({0, -1, 0, 5});
  options.feature_seeds = {7, 7, 7};
  const TestStore store(options);
  store.Train(Keys({1, 1, 1, 2, 2, 2, 3, 3, 3}, {0, 1, 2}), Floats(9, 1.0f),
              0.1f);
  CHECK_EQ(Expire(store), 4);
  CHECK_EQ(store.Stats().known_rows, 5);
}

TEST(ExpiryComesWithTheUpdateThatIsDue) {
  Everywhere({3, 1, 0, -1}, [](const TestStore& store) {
    const int64_t expected[] = {1, 2, 2, 3, 4, 2};
    for (int64_t step = 1; step <= 6; ++step) {
      CHECK_EQ(store.Train(Keys({step}), {1}, 0.1f), step);
      CHECK_EQ(store.Stats().known_rows, expected[step - 1]);
    }
    CHECK_EQ(store.Stats().expired_rows, 4);
  });
}

TEST(RowsThatHoldNothingStayAndDoNotCount) {
  const TestStore store(Options({0, -1, 0, 1}));
  store.Lookup(Keys({1, 2, 3}));
  store.Train(Keys({4}), {1}, 0.1f);
  CHECK_EQ(Expire(store), 0);
  CHECK_EQ(store.Stats().rows, 4);
}

TEST(AnUpdateBringsARowBackThatExpiredMeanwhile) {
  Everywhere({0, 1, 0, -1}, [](const TestStore& store) {
    store.Train(Keys({1}), {4}, 0.5f);
    const auto late = store.Lookup(Keys({1}));
    CHECK_EQ(late.rows, Floats{-1.0f});
    for (int i = 0; i < 3; ++i) {
      const auto found = store.Lookup(Keys({2}));
      store.Update(found.ticket, {1}, 0.1f);
      store.Read(Keys({2}));  // Ends the step, though `late` is open.
    }
    CHECK_EQ(Expire(store), 1);
    store.Update(late.ticket, {1}, 0.5f);
    CHECK_EQ(store.Read(Keys({1})), Floats{0.5f});
  });
}

TEST(MemoryIsGivenBack) {
  const auto budget = RoomFor(10);
  const TestStore store(Options({0, 1, 0, -1}), budget);
  const Keys keys = Range(0, 10);
  store.Train(keys, Floats(10, 1.0f), 0.1f);
  CHECK_EQ(store.TryLookup(Keys({99})).code(), StatusCode::kResourceExhausted);
  for (int i = 0; i < 2; ++i) store.Train(Keys({0}), {1}, 0.1f);
  CHECK_EQ(Expire(store), 9);
  CHECK_EQ(budget->used_bytes(), store.Stats().row_bytes);
  CHECK_OK(store.TryLookup(Keys({99})));
}

TEST(DiskIsGivenBack) {
  const TemporaryDirectory ssd;
  StoreOptions options = OverSsd(Options({0, 1, 0, -1}), ssd.path());
  options.shard_bits = 0;
  const TestStore store(options, RoomFor(1));
  const Keys keys = Range(0, 20000);
  store.Train(keys, Floats(20000, 1.0f), 0.1f);
  for (int i = 0; i < 2; ++i) store.Train(Keys({0}), {1}, 0.1f);
  const int64_t before = store.Stats().disk_bytes;
  CHECK_EQ(Expire(store), 19999);
  store->FinishBackground();
  CHECK_LT(store.Stats().disk_bytes, before / 4);
  CHECK_EQ(store.Export().size(), size_t{1});
}

TEST(ASnapshotThatWasBegunKeepsRowsThatExpireMeanwhile) {
  Everywhere({0, 1, 0, -1}, [](const TestStore& store) {
    const TemporaryDirectory directory;
    for (int64_t id = 1; id <= 9; ++id) store.Train(Keys({id}), {1}, 0.1f);
    const Table expected = store.Export();
    for (int snapshot = 0; snapshot < 2; ++snapshot) {
      const std::string path =
          directory.path() + "/" + std::to_string(snapshot);
      CHECK_OK(store->BeginSave(path, directory.path(), store.executor()));
      CHECK_EQ(Expire(store), snapshot == 0 ? 7 : 0);
      SaveReport report;
      CHECK_OK(store->FinishSave("", &report));
      const TestStore restored(SmallOptions(1));
      CHECK_OK(restored->Restore(path, {0, 1, 2}, {}, restored.executor()));
      CHECK_EQ(restored.Export(), snapshot == 0 ? expected : store.Export());
    }
  });
}

// The caller must count the step, which is done, or its count would differ from
// the store's for good.
TEST(AFileThatCannotBeReadIsToldAfterTheStepThatWantedTo) {
  const TemporaryDirectory ssd;
  FaultyFileSystem files;
  StoreOptions options = OverSsd(Options({2, 100, 0, -1}), ssd.path(), &files);
  options.shard_bits = 0;
  const TestStore store(options, RoomFor(1));
  const Keys keys = Range(0, 20000);
  store.Train(keys, Floats(20000, 1.0f), 0.1f);
  store->FinishBackground();
  const testing::LookupResult found = store.Lookup(Keys({0}));
  files.Fail(FaultyFileSystem::Call::kRead, FaultyFileSystem::Fault::kIoError,
             0);
  const float gradient = 1.0f;
  int64_t step = 0;
  CHECK_OK(store->Update(found.ticket, {&gradient, nullptr}, 0.1f,
                         store.executor(), &step));
  CHECK_EQ(step, 2);
  CHECK_EQ(files.num_faults(), 1);
  Floats row(1);
  std::shared_ptr<Ticket> ticket;
  const Status status =
      store->Lookup(Keys({0}), store.executor(), row.data(), &ticket);
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "/segment-");
  // Once.
  CHECK_OK(store->Lookup(Keys({0}), store.executor(), row.data(), &ticket));
  CHECK_EQ(store->step(), 2);
}

TEST(ATableWithoutARuleSaysSo) {
  const TestStore store(SmallOptions(1));
  int64_t removed = -1;
  const Status status = store->Expire(store.executor(), &removed);
  CHECK_EQ(status.code(), StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(status.message(), "Table 'ads' was made without a rule");
  CHECK_EQ(removed, 0);
}

}  // namespace
}  // namespace tfctr
