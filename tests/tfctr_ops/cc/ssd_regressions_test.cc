// What a store over an SSD once did wrong.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::FaultyFileSystem;
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
using Call = FaultyFileSystem::Call;
using Floats = std::vector<float>;

constexpr int64_t kPageDim = 1000;  // One row in a page.

StoreOptions OptionsOf(int64_t dim, const TemporaryDirectory& directory,
                       FileSystem* files = FileSystem::Posix()) {
  StoreOptions options = OverSsd(SmallOptions(dim), directory.path(), files);
  options.shard_bits = 0;
  return options;
}

Table TableOf(int64_t n, int64_t dim, float value) {
  Table table;
  for (int64_t id = 0; id < n; ++id) {
    table[{0, id}] = {Floats(static_cast<size_t>(dim), value), 0, 1};
  }
  return table;
}

// A prefetch on a thread of its own, which stops in the middle: its rows are
// read and not brought up yet.
class SlowPrefetch {
 public:
  SlowPrefetch(const TestStore& store, FaultyFileSystem* files, int64_t id) {
    files->set_watcher([this](Call call, const std::string&) {
      if (call != Call::kRead || std::this_thread::get_id() != self_) return;
      std::unique_lock<std::mutex> lock(mutex_);
      reads_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return goes_on_; });
    });
    thread_ = std::thread([this, &store, id] {
      self_ = std::this_thread::get_id();
      CHECK_OK(store->Prefetch(Keys({id}), store.executor()));
    });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return reads_; });
  }

  void Finish() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      goes_on_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reads_ = false;
  bool goes_on_ = false;
  std::atomic<std::thread::id> self_{};
  std::thread thread_;
};

// The import puts another row of key 1 where the old one was read.
TEST(APrefetchBesideAnImportBringsUpNoOldRow) {
  const TemporaryDirectory directory;
  FaultyFileSystem files;
  const TestStore store(OptionsOf(kPageDim, directory, &files),
                        RoomFor(4, kPageDim));
  store.Import(TableOf(10, kPageDim, 1.0f), 0);
  store->FinishBackground();
  SlowPrefetch prefetch(store, &files, 1);
  store.Import(TableOf(10, kPageDim, 2.0f), 0);
  prefetch.Finish();
  CHECK_EQ(store.Export(), TableOf(10, kPageDim, 2.0f));
}

// The same by training alone, when files of a few rows come and go.
TEST(APrefetchBesideTrainingBringsUpNoOldRow) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const TemporaryDirectory directory;
    FaultyFileSystem files;
    StoreOptions options = OptionsOf(kPageDim, directory, &files);
    options.ssd.limit_bytes = 40 * 4096;  // Segments of 4 rows.
    const TestStore store(options, RoomFor(2, kPageDim));
    std::map<int64_t, float> model;
    const auto train = [&](int64_t id) {
      store.Train(Range(id, id + 1), Floats(kPageDim, 1.0f), 1.0f);
      store->FinishBackground();
      model.emplace(id, 1.0f).first->second -= 1;
    };
    for (const int64_t id : {0, 5, 1, 2, 3, 4}) train(id);
    SlowPrefetch prefetch(store, &files, 5);
    Random random(seed);
    for (int i = 0; i < 30; ++i) train(random.Below(8));
    prefetch.Finish();
    for (const auto& [id, value] : model) {
      CHECK_EQ(store.Read(Range(id, id + 1))[0], value);
    }
  }
}

// A store on the least disk, trained until rows are refused there.
struct FullStore {
  FullStore() {
    StoreOptions options = OptionsOf(1, directory);
    options.ssd.limit_bytes = SsdTier::MinLimitBytes(RowLayout(1, 0), 1);
    store = std::make_unique<TestStore>(options, RoomFor(10, 1));
    while (store->Stats().rows <= 14) CHECK_OK(TryWriteMore());
  }
  Status TryWriteMore() {
    const Floats weights(50, 3.0f);
    const Status status = (*store)->Write(Range(num_rows, num_rows + 50),
                                          weights.data(), store->executor());
    if (status.ok()) num_rows += 50;
    return status;
  }

  const TemporaryDirectory directory;
  std::unique_ptr<TestStore> store;
  int64_t num_rows = 0;
};

TEST(AFullStoreTakesRowsWhenOthersWereRemoved) {
  FullStore full;
  full.store->Remove(Range(0, full.num_rows));
  CHECK_OK(full.TryWriteMore());
}

TEST(AFullStoreTakesAnImport) {
  FullStore full;
  const Table table = TableOf(100, 1, 7.0f);
  full.store->Import(table, 1);
  CHECK_EQ(full.store->Export(), table);
}

TEST(WhoTriesAgainWhenAStoreIsFullDoesNotFillTheMemory) {
  FullStore full;
  while (full.TryWriteMore().ok()) {
  }
  for (int i = 0; i < 100; ++i) {
    CHECK_EQ(full.TryWriteMore().code(), StatusCode::kResourceExhausted);
  }
  CHECK_LT(full.store->Stats().rows, 100);
}

TEST(AnImportAfterAnErrorOfTheDiskChangesNothing) {
  const TemporaryDirectory directory;
  FaultyFileSystem files;
  const TestStore store(OptionsOf(kPageDim, directory, &files),
                        RoomFor(4, kPageDim));
  store.Write(Range(0, 10), Floats(10 * kPageDim, 3.0f));
  store->FinishBackground();
  files.Fail(Call::kWrite, FaultyFileSystem::Fault::kIoError, 0);
  store.Write(Range(0, 10), Floats(10 * kPageDim, 4.0f));
  store->FinishBackground();
  CHECK_EQ(store.TryImport(TableOf(2, kPageDim, 5.0f), 1).code(),
           StatusCode::kUnavailable);
  CHECK_EQ(store.Read(Range(0, 10)), Floats(10 * kPageDim, 4.0f));
}

// Compaction went on for ever over a segment without a live row.
TEST(RowsThatAreRemovedWhileASnapshotIsMadeLeaveNoSegment) {
  const TemporaryDirectory snapshots;
  StoreOptions options = SmallOptions(1);
  options.shard_bits = 0;
  const TestStore store(options);
  store.Write(Range(0, 3), Floats(3, 2.0f));
  CHECK_OK(store->BeginSave(snapshots.path() + "/0", snapshots.path(),
                            store.executor()));
  CHECK_EQ(store.Remove(Range(0, 3)), 3);
  SaveReport report;
  CHECK_OK(store->FinishSave("", &report));
  CHECK_EQ(report.rows, 3);
  CHECK_OK(
      store->Restore(snapshots.path() + "/0", {0, 1, 2}, {}, store.executor()));
  CHECK_EQ(store.Read(Range(0, 3)), Floats(3, 2.0f));
}

// A child has none of its parent's threads, and must not wait for them; nor may
// it remove files that are its parent's.
TEST(AChildOfForkLeavesTheStoreToItsParent) {
  const TemporaryDirectory directory;
  std::shared_ptr<EmbeddingStore> store;
  CHECK_OK(EmbeddingStore::Create(OptionsOf(kPageDim, directory),
                                  RoomFor(2, kPageDim), &store));
  SerialExecutor executor;
  const Keys keys = Range(0, 20);
  const Floats ones(20 * kPageDim, 1.0f);
  CHECK_OK(store->Write(keys, ones.data(), &executor));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // Ends it if it hangs.
    store.reset();
    _exit(0);
  }
  int status = 1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  Floats rows(20 * kPageDim);
  CHECK_OK(store->Read(keys, &executor, rows.data()));
  CHECK(rows == ones);
}

TEST(ASnapshotOfAFileThatLostItsEndIsRefused) {
  const TemporaryDirectory directory, snapshots;
  const TestStore store(OptionsOf(kPageDim, directory), RoomFor(2, kPageDim));
  store.Write(Range(0, 20), Floats(20 * kPageDim, 1.0f));
  store.Save(snapshots.path() + "/0");
  std::string cut;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(directory.path())) {
    if (file.path().filename().string().rfind("segment-", 0) != 0) continue;
    cut = file.path().string();
    std::filesystem::resize_file(file.path(), 4096);
  }
  SaveReport report;
  const Status status =
      store->Save(snapshots.path() + "/1", "", store.executor(), &report);
  CHECK_EQ(status.code(), StatusCode::kDataLoss);
  CHECK_CONTAINS(status.message(), "has lost its end: expected ");
  CHECK_CONTAINS(status.message(), "Received: 4096.");
  CHECK(!cut.empty());
  CHECK(!std::filesystem::exists(snapshots.path() + "/1"));
}

// Fails now and then, after some rounds.
TEST(AnImportBesidePrefetchesLosesNoRow) {
  constexpr int64_t kRows = 300000;
  const TemporaryDirectory directory;
  ThreadExecutor executor(2);
  StoreOptions options = OptionsOf(1, directory);
  options.shard_bits = 2;
  const TestStore store(options, RoomFor(2000, 1), &executor);
  for (int round = 0; round < 10; ++round) {
    store.Import(TableOf(kRows, 1, 1.0f), 0);
    std::atomic<bool> stops{false};
    std::thread prefetch([&] {
      SerialExecutor own;
      Random random(3);
      while (!stops) {
        Keys keys({});
        for (int i = 0; i < 200; ++i) keys.ids.push_back(random.Below(kRows));
        CHECK_OK(store->Prefetch(keys, &own));
      }
    });
    store.Import(TableOf(kRows, 1, 2.0f), 0);
    stops = true;
    prefetch.join();
    CHECK_EQ(store.Stats().known_rows, kRows);
  }
}

}  // namespace
}  // namespace tfctr
