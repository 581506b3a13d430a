// Snapshots: what they hold, what they share, and what training may do
// meanwhile.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

namespace fs = std::filesystem;
using testing::Keys;
using testing::OverSsd;
using testing::Random;
using testing::RoomFor;
using testing::SmallOptions;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using testing::ThreadExecutor;
using Kind = SparseOptimizer::Kind;

constexpr int64_t kDim = 4;
constexpr int kSteps = 300;
const std::vector<int32_t> kFeatures = {0, 1, 2};

StoreOptions Options() { return SmallOptions(kDim, Kind::kAdagrad); }

// Step `step` of a training that is always the same.
void TrainStep(const TestStore& store, uint64_t step) {
  Random random(step);
  Keys keys({}, {0, 2});
  for (int i = 0; i < 60; ++i) {
    // Some keys again and again, others once.
    keys.ids.push_back(random.Below(3) == 0 ? random.Below(2000)
                                            : random.Below(50));
  }
  store.Train(keys, random.Uniforms(60 * kDim, -1.0f, 1.0f), 0.1f);
}

SaveReport Save(const TestStore& store, const std::string& path) {
  return store.Save(path, "facts");
}

Table Restored(const std::string& path, int64_t* step = nullptr) {
  const TestStore store(Options());
  CHECK_OK(store->Restore(path, kFeatures, {}, store.executor()));
  if (step != nullptr) *step = store->step();
  return store.Export();
}

// The tables after 0, 1, ... kSteps steps.
std::vector<Table> TablesByStep() {
  const TestStore store(Options());
  std::vector<Table> tables = {store.Export()};
  for (int step = 1; step <= kSteps; ++step) {
    TrainStep(store, static_cast<uint64_t>(step));
    tables.push_back(store.Export());
  }
  return tables;
}

TEST(ASnapshotIsTheTableOfOneMomentWhileTrainingGoesOn) {
  const std::vector<Table> expected = TablesByStep();
  for (const int64_t ram_rows : {-1, 0, 40, 400}) {
    const TemporaryDirectory ssd, snapshots;
    ThreadExecutor executor(2);
    const TestStore store(
        ram_rows < 0 ? Options() : OverSsd(Options(), ssd.path()),
        ram_rows < 0 ? RoomFor(1 << 20, kDim, kDim)
                     : RoomFor(ram_rows, kDim, kDim),
        &executor);
    std::atomic<int> saved{0};
    std::atomic<bool> trained{false};
    std::thread saver([&] {
      while (!trained || saved < 2) {
        Save(store, snapshots.path() + "/" + std::to_string(saved));
        ++saved;
      }
    });
    for (int step = 1; step <= kSteps; ++step) {
      TrainStep(store, static_cast<uint64_t>(step));
    }
    trained = true;
    saver.join();
    CHECK_EQ(store.Export(), expected.back());
    for (int i = 0; i < saved; ++i) {
      int64_t step = -1;
      const Table table =
          Restored(snapshots.path() + "/" + std::to_string(i), &step);
      CHECK_EQ(table, expected[static_cast<size_t>(step)]);
    }
  }
}

TEST(OnlyRowsThatChangedAreWrittenAgain) {
  for (const bool over_ssd : {false, true}) {
    const TemporaryDirectory ssd, snapshots;
    const TestStore store(over_ssd ? OverSsd(Options(), ssd.path()) : Options(),
                          RoomFor(1 << 20, kDim, kDim));
    const auto weights = [](int64_t n) {
      return std::vector<float>(static_cast<size_t>(n * kDim), 1.0f);
    };
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 1000; ++id) ids.push_back(id);
    store.Write(ids, weights(1000));
    const SaveReport full = Save(store, snapshots.path() + "/a");
    CHECK_EQ(full.rows, 1000);
    CHECK_EQ(full.rows_written, 1000);

    store.Write({{1, 2, 3, 2000}}, weights(4));
    store.Remove({{5, 6}});
    const SaveReport delta = Save(store, snapshots.path() + "/b");
    CHECK_EQ(delta.rows, 999);
    CHECK_EQ(delta.rows_written, 4);
    CHECK_EQ(Restored(snapshots.path() + "/b"), store.Export());

    const SaveReport none = Save(store, snapshots.path() + "/c");
    CHECK_EQ(none.rows, 999);
    CHECK_EQ(none.rows_written, 0);
    // Each stands for itself.
    fs::remove_all(snapshots.path() + "/a");
    fs::remove_all(snapshots.path() + "/b");
    CHECK_EQ(Restored(snapshots.path() + "/c"), store.Export());
  }
}

TEST(TheFilesOfManySnapshotsStayBelowTwiceTheRows) {
  const TemporaryDirectory snapshots;
  const TestStore store(Options());
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 20000; ++id) ids.push_back(id);
  const std::vector<float> weights(ids.size() * kDim, 1.0f);
  const int64_t payload =
      static_cast<int64_t>(ids.size()) * store->layout().row_bytes();
  for (int i = 0; i < 20; ++i) {
    store.Write(ids, weights);
    const SaveReport report =
        Save(store, snapshots.path() + "/" + std::to_string(i));
    CHECK_EQ(report.rows, 20000);
    CHECK_LE(report.bytes, 2 * payload + (int64_t{1} << 20));
    if (i > 0) {
      fs::remove_all(snapshots.path() + "/" + std::to_string(i - 1));
    }
  }
}

TEST(ASnapshotGoesIntoAnotherNumberOfShardsAndAnotherMemory) {
  const TemporaryDirectory ssd, snapshots;
  const TestStore store(OverSsd(Options(), ssd.path()),
                        RoomFor(50, kDim, kDim));
  for (uint64_t step = 1; step < 30; ++step) TrainStep(store, step);
  Save(store, snapshots.path() + "/a");
  for (const int shard_bits : {0, 5}) {
    for (const int64_t rows : {10, 100000}) {
      const TemporaryDirectory other;
      StoreOptions options = OverSsd(Options(), other.path());
      options.shard_bits = shard_bits;
      const TestStore copy(options, RoomFor(rows, kDim, kDim));
      CHECK_OK(copy->Restore(snapshots.path() + "/a", kFeatures, {},
                             copy.executor()));
      CHECK_EQ(copy.Export(), store.Export());
      CHECK_EQ(copy->step(), store->step());
      // And goes on as the first one does.
      const TestStore reference(Options());
      CHECK_OK(reference->Restore(snapshots.path() + "/a", kFeatures, {},
                                  reference.executor()));
      TrainStep(copy, 30);
      TrainStep(reference, 30);
      CHECK_EQ(copy.Export(), reference.Export());
    }
  }
}

TEST(FeaturesAreRenumbered) {
  const TemporaryDirectory snapshots;
  const TestStore store(Options());
  store.Write(Keys({7}, {0}), {1, 2, 3, 4});
  Save(store, snapshots.path() + "/a");
  const TestStore copy(Options());
  CHECK_OK(
      copy->Restore(snapshots.path() + "/a", {2, 1, 0}, {}, copy.executor()));
  CHECK_EQ(copy.Read(Keys({7}, {2})), (std::vector<float>{1, 2, 3, 4}));
  const Status status =
      copy->Restore(snapshots.path() + "/a", {}, {}, copy.executor());
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(),
                 "has a row of feature 0. Received: "
                 "`features` for 0 features.");
  CHECK_EQ(copy->Restore(snapshots.path() + "/a", {9}, {}, copy.executor())
               .message(),
           "`features` must lie in [0, 3). Received: 9.");
}

TEST(ASnapshotOfOtherRowsIsRefusedAndChangesNothing) {
  const TemporaryDirectory snapshots;
  const TestStore store(SmallOptions(2, Kind::kSgd));
  store.Write({{1}}, {5, 6});
  Save(store, snapshots.path() + "/a");
  const TestStore other(Options());
  other.Write({{1}}, {1, 2, 3, 4});
  const Status status =
      other->Restore(snapshots.path() + "/a", kFeatures, {}, other.executor());
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "Table 'ads' has rows of dim=4 with 4 ");
  CHECK_CONTAINS(status.message(), "with dim=2, 0 values, kind 0. Build the ");
  CHECK_EQ(other.Export().size(), size_t{1});
}

TEST(ADirectoryThatExistsIsRefused) {
  const TemporaryDirectory snapshots;
  const TestStore store(Options());
  SaveReport report;
  const Status status =
      store->Save(snapshots.path(), "", store.executor(), &report);
  CHECK_EQ(status.code(), StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(status.message(), "which exists. Name another, or remove it.");
}

// Every byte of every file is guarded, but the zeros behind the rows of a page
// and of the first one: those are guarded too, by the checksums of the pages.
TEST(EveryFlippedBitIsFound) {
  const TemporaryDirectory snapshots;
  const std::string path = snapshots.path() + "/a";
  const TestStore store(Options());
  for (uint64_t step = 1; step < 4; ++step) TrainStep(store, step);
  Save(store, path);
  Random random(1);
  for (const auto& entry : fs::directory_iterator(path)) {
    const auto size = static_cast<int64_t>(entry.file_size());
    for (int i = 0; i < 40; ++i) {
      const int64_t at = random.Below(size);
      std::fstream file(entry.path(),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const char byte = static_cast<char>(file.get());
      file.seekp(at);
      file.put(static_cast<char>(byte ^ (1 << random.Below(8))));
      file.close();
      const TestStore copy(Options());
      const Status status = copy->Restore(path, kFeatures, {}, copy.executor());
      CHECK(!status.ok());
      CHECK_CONTAINS(status.message(), entry.path().string());
      CHECK_EQ(copy.Export().size(), size_t{0});
      file.open(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(at);
      file.put(byte);
    }
  }
  CHECK_EQ(Restored(path), store.Export());
}

}  // namespace
}  // namespace tfctr
