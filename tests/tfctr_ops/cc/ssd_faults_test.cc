// A store whose SSD tier stands on a disk with faults gives the values of its
// model or an error that names the place: never a wrong value.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/store_model.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;
using testing::Key;
using testing::Keys;
using testing::OverSsd;
using testing::Random;
using testing::SmallOptions;
using testing::StoreModel;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

// Rows of 504 bytes, 8 in a page.
constexpr int64_t kDim = 60;
constexpr int64_t kNumIds = 60;  // Of each of three features.
constexpr float kLearningRate = 0.1f;

struct Case {
  int shard_bits;
  bool direct_reads;
  int64_t ram_rows;
  int64_t limit_pages = 100;  // Of each shard; all rows need 23.
};

// Less than a batch in memory, and more; one shard and several.
const Case kCases[] = {{0, false, 10}, {2, true, 25}, {1, false, 60}};

int64_t RowBytes() { return RowLayout(kDim, kDim).row_bytes(); }

StoreOptions OptionsOf(const Case& c, const TemporaryDirectory& directory,
                       FileSystem* files) {
  StoreOptions options =
      OverSsd(SmallOptions(kDim, Kind::kAdagrad), directory.path(), files);
  options.initializer = {RowInitializer::Kind::kNormal, 0.0f, 0.5f};
  options.default_row.assign(kDim, 17.0f);
  options.shard_bits = c.shard_bits;
  options.ssd.direct_reads = c.direct_reads;
  options.ssd.limit_bytes = (c.limit_pages << c.shard_bits) * 4096;
  return options;
}

// Random calls of a store and of its model.
class Training {
 public:
  Training(const Case& c, const TemporaryDirectory& directory,
           FileSystem* files)
      : options_(OptionsOf(c, directory, files)),
        executor_(2),
        model_(options_, -1),
        store_(options_,
               std::make_shared<MemoryBudget>(c.ram_rows * RowBytes()),
               &executor_),
        random_(7) {}

  // The next call. One that returns an error has changed nothing, but for an
  // update, which counts.
  Status Step() {
    // Else the writer may stay behind, and every row in memory.
    if (random_.Below(3) > 0) store_->FinishBackground();
    const int64_t die = random_.Below(20);
    if (die < 13) return Train();
    if (die < 15) return Write();
    if (die < 16) return Remove();
    if (die < 17) return store_->Prefetch(SomeKeys(60), &executor_);
    if (die < 19) return Read(SomeKeys(20));
    return Export();
  }

  Status Read(const Keys& keys) {
    Floats rows = RowsFor(keys);
    const Status status = store_->Read(keys, &executor_, rows.data());
    if (status.ok()) CheckEqual(rows, model_.Read(keys));
    return status;
  }

  Status Export() {
    Table table;
    std::vector<int64_t> ids, last_steps, counts;
    std::vector<int32_t> features;
    Floats floats;
    const Status status =
        store_->Export(&executor_, [&](int64_t n, RowArrays* rows) {
          const auto size = static_cast<size_t>(n);
          ids.resize(size);
          features.resize(size);
          floats.resize(size * 2 * kDim);
          last_steps.resize(size);
          counts.resize(size);
          *rows = {ids.data(), features.data(), floats.data(),
                   last_steps.data(), counts.data()};
          return Status::Ok();
        });
    if (!status.ok()) return status;
    const std::map<Key, StoreModel::Row> expected = model_.KnownRows();
    CHECK_EQ(ids.size(), expected.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const StoreModel::Row& row = expected.at({features[i], ids[i]});
      const auto at = floats.begin() + static_cast<int64_t>(i) * 2 * kDim;
      CheckEqual(Floats(at, at + 2 * kDim), row.floats);
      CHECK_EQ(last_steps[i], row.last_step);
      CHECK_EQ(counts[i], row.count);
    }
    return status;
  }

  // Whether nothing can be trained any more.
  Status TryLookup() {
    std::shared_ptr<Ticket> ticket;
    return store_->Lookup(Keys({}), &executor_, nullptr, &ticket);
  }

  // Reads every key on its own. Returns how many give an error, each of which
  // is appended.
  int64_t CountUnreadable(std::vector<Status>* errors) {
    int64_t num_unreadable = 0;
    for (int32_t feature = 0; feature < 3; ++feature) {
      for (int64_t id = 0; id < kNumIds; ++id) {
        const Status status = Read(Keys({id}, {feature}));
        if (status.ok()) continue;
        ++num_unreadable;
        errors->push_back(status);
      }
    }
    return num_unreadable;
  }

  const TestStore& store() const { return store_; }

 private:
  static Floats RowsFor(const Keys& keys) {
    return Floats(static_cast<size_t>(keys.size() * kDim), -12345.0f);
  }

  static void CheckEqual(const Floats& got,
                         const std::vector<double>& expected) {
    CHECK_EQ(got, Floats(expected.begin(), expected.end()));
  }

  Keys SomeKeys(int64_t n) {
    Keys keys({}, {0, 1, 2});
    for (int64_t i = 0; i < n / 3 * 3; ++i) {
      // Some are asked for often.
      keys.ids.push_back(random_.Below(2) == 0 ? random_.Below(5)
                                               : random_.Below(kNumIds));
    }
    return keys;
  }

  // One or two lookups, of which the second may drive out rows of the first.
  Status Train() {
    struct Open {
      Keys keys;
      std::shared_ptr<Ticket> ticket;
    };
    std::vector<Open> open;
    const int64_t num_lookups = 1 + random_.Below(2);
    for (int64_t i = 0; i < num_lookups; ++i) {
      open.push_back({SomeKeys(24), nullptr});
      const Keys& keys = open.back().keys;
      Floats rows = RowsFor(keys);
      const Status status =
          store_->Lookup(keys, &executor_, rows.data(), &open.back().ticket);
      if (!status.ok()) return status;
      CHECK(model_.TryInsert(keys));
      CheckEqual(rows, model_.LookupInserted(keys));
    }
    Status status;
    for (const Open& lookup : open) {
      const Floats gradient =
          random_.Uniforms(lookup.keys.size() * kDim, -1.0f, 1.0f);
      int64_t step;
      status = store_.TryUpdate(lookup.ticket, gradient, kLearningRate, &step);
      model_.Report(next_sequence_++, lookup.keys, gradient, kLearningRate);
    }
    model_.EndStep();
    return status;
  }

  Status Write() {
    const Keys keys = SomeKeys(15);
    const Floats weights = random_.Uniforms(keys.size() * kDim, -1.0f, 1.0f);
    const Status status = store_->Write(keys, weights.data(), &executor_);
    if (!status.ok()) return status;
    CHECK(model_.TryInsert(keys));
    model_.Write(keys, weights);
    return status;
  }

  Status Remove() {
    const Keys keys = SomeKeys(9);
    int64_t removed = -1;
    const Status status = store_->Remove(keys, &executor_, &removed);
    if (status.ok()) CHECK_EQ(removed, model_.Remove(keys));
    return status;
  }

  const StoreOptions options_;
  ThreadExecutor executor_;
  StoreModel model_;
  TestStore store_;
  Random random_;
  int64_t next_sequence_ = 0;
};

constexpr int kNumSteps = 60;

// What a test lets happen to the disk, and what may come of it.
struct Trouble {
  Call call;
  Fault fault;
  int64_t times;
  // Of the error; what is damaged for good costs the rows that were there.
  StatusCode code;
  bool loses_rows;
};

void CheckError(const Status& status, const Trouble& trouble,
                const std::string& directory) {
  CHECK_EQ(status.code(), trouble.code);
  CHECK_CONTAINS(status.message(), directory + "/tfctr-");
  CHECK_CONTAINS(status.message(), "/segment-");
  CHECK_CONTAINS(status.message(), "offset ");
}

// Trains over a disk that gets into trouble after `skip` calls that succeed.
// Returns whether it did.
bool RunInto(const Trouble& trouble, int64_t skip, const Case& c) {
  const TemporaryDirectory directory;
  FaultyFileSystem files;
  {
    Training training(c, directory, &files);
    files.Fail(trouble.call, trouble.fault, skip, trouble.times);
    bool stuck = false;
    int num_errors = 0;
    for (int step = 0; step < kNumSteps && !stuck; ++step) {
      const Status status = training.Step();
      CHECK_LE(training.store().Stats().disk_bytes,
               training.store()->options().ssd.limit_bytes);
      if (status.ok()) continue;
      CheckError(status, trouble, directory.path());
      ++num_errors;
      const Status next = training.TryLookup();
      stuck = !next.ok();
      if (stuck) CheckError(next, trouble, directory.path());
    }
    training.store()->FinishBackground();
    // What failed once, while a call waited for it, is an error once.
    if (!stuck && !trouble.loses_rows) CHECK_LE(num_errors, trouble.times);

    // The disk is good again, but for what it lost.
    files.Fail(trouble.call, trouble.fault, 0, 0);
    std::vector<Status> errors;
    const int64_t num_unreadable = training.CountUnreadable(&errors);
    for (const Status& status : errors) {
      CheckError(status, trouble, directory.path());
    }
    if (!trouble.loses_rows) {
      CHECK_EQ(num_unreadable, 0);
      CHECK_OK(training.Export());
    } else if (training.Read(Keys({})).ok()) {
      CHECK_LE(num_unreadable, training.store().Stats().rows_on_disk_only);
      const Status status = training.Export();
      if (!status.ok()) CheckError(status, trouble, directory.path());
    }
    // What could not be written may be too much for memory: no more is taken.
    if (stuck && trouble.call == Call::kWrite) {
      CHECK(!training.TryLookup().ok());
    }
  }
  CHECK(fs::exists(directory.path() + "/.tfctr-lock"));
  CHECK_EQ(std::distance(fs::directory_iterator(directory.path()),
                         fs::directory_iterator()),
           1);
  return files.num_faults() > 0;
}

// Runs into the trouble sooner and later, until it comes after the end.
void RunIntoItAnywhere(const Trouble& trouble, int64_t stride) {
  const char* const test = testing::RunningTest();
  for (const Case& c : kCases) {
    int64_t skip = 0;
    bool happened = true;
    for (; happened; skip += stride) {
      // A check that fails tells where.
      const std::string name =
          test + (" after " + std::to_string(skip)) +
          " calls, with ram_rows=" + std::to_string(c.ram_rows);
      testing::RunningTest() = name.c_str();
      happened = RunInto(trouble, skip, c);
      testing::RunningTest() = test;
    }
    CHECK_GE(skip, 2 * stride);
  }
}

TEST(WithoutTroubleTheStoreEqualsTheModel) {
  for (const Case& c : kCases) {
    const TemporaryDirectory directory;
    FaultyFileSystem files;
    Training training(c, directory, &files);
    for (int step = 0; step < 5 * kNumSteps; ++step) CHECK_OK(training.Step());
    CHECK_OK(training.Export());
    training.store()->FinishBackground();
    // It was put to the test.
    CHECK_GT(files.num_calls(Call::kWrite), 100);
    CHECK_GT(files.num_calls(Call::kRead), 100);
    CHECK_GT(files.num_calls(Call::kOpen), 10);
  }
}

TEST(AWriteThatFails) {
  RunIntoItAnywhere(
      {Call::kWrite, Fault::kIoError, 1, StatusCode::kUnavailable, false}, 23);
}

TEST(AFullDisk) {
  RunIntoItAnywhere({Call::kWrite, Fault::kNoSpace, FaultyFileSystem::kForever,
                     StatusCode::kResourceExhausted, false},
                    31);
}

TEST(AShortWrite) {
  RunIntoItAnywhere(
      {Call::kWrite, Fault::kShortWrite, 1, StatusCode::kUnavailable, false},
      31);
}

TEST(AReadThatFailsOnce) {
  RunIntoItAnywhere(
      {Call::kRead, Fault::kIoError, 1, StatusCode::kUnavailable, false}, 97);
}

TEST(ADiskThatCannotBeReadAnyMore) {
  RunIntoItAnywhere({Call::kRead, Fault::kIoError, FaultyFileSystem::kForever,
                     StatusCode::kUnavailable, false},
                    97);
}

TEST(ABitThatFlipsInARead) {
  RunIntoItAnywhere(
      {Call::kRead, Fault::kFlippedBit, 1, StatusCode::kDataLoss, false}, 97);
}

TEST(ABitThatFlipsInAWrite) {
  RunIntoItAnywhere(
      {Call::kWrite, Fault::kFlippedBit, 1, StatusCode::kDataLoss, true}, 17);
}

TEST(ATornBlock) {
  RunIntoItAnywhere(
      {Call::kWrite, Fault::kTornBlock, 1, StatusCode::kDataLoss, true}, 19);
}

TEST(AWriteThatIsLost) {
  RunIntoItAnywhere(
      {Call::kWrite, Fault::kLost, 1, StatusCode::kDataLoss, true}, 19);
}

TEST(ADiskThatLosesEverything) {
  RunIntoItAnywhere({Call::kWrite, Fault::kLost, FaultyFileSystem::kForever,
                     StatusCode::kDataLoss, true},
                    19);
}

// The rows do not fit onto the disk, nor into memory.
TEST(AFullLimitIsAnErrorThatLosesNoRow) {
  const Case c = {0, false, 10, 20};
  const TemporaryDirectory directory;
  Training training(c, directory, FileSystem::Posix());
  std::string own;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    if (entry.is_directory()) own = entry.path();
  }
  int num_errors = 0;
  for (int step = 0; step < 4 * kNumSteps; ++step) {
    const Status status = training.Step();
    CHECK_LE(training.store().Stats().disk_bytes, 20 * 4096);
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(own)) {
      std::error_code error;  // It may vanish just now.
      const auto size = entry.file_size(error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
    CHECK_LE(bytes, 20 * 4096);
    if (status.ok()) continue;
    ++num_errors;
    CHECK_EQ(status.code(), StatusCode::kResourceExhausted);
    CHECK_CONTAINS(status.message(), "Table 'ads' is full: ssd_limit=81920");
    CHECK_CONTAINS(status.message(), "'" + directory.path() + "'");
    CHECK_CONTAINS(status.message(), "No row was lost.");
  }
  CHECK_GT(num_errors, 10);
  std::vector<Status> errors;
  CHECK_EQ(training.CountUnreadable(&errors), 0);
  CHECK_OK(training.Export());
}

TEST(ALimitThatIsTooSmallForTheShardsIsAnError) {
  const TemporaryDirectory directory;
  StoreOptions options = OptionsOf(kCases[1], directory, FileSystem::Posix());
  options.ssd.limit_bytes = 4 * 20 * 4096 - 1;
  std::shared_ptr<EmbeddingStore> store;
  const Status status =
      EmbeddingStore::Create(options, testing::NoLimit(), &store);
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(),
                 "Table 'ads' needs an `ssd_limit` of at least 327680 bytes. "
                 "Received: ssd_limit=327679.");
  CHECK(store == nullptr);
}

TEST(ADirectoryThatCannotBeMadeIsAnError) {
  const TemporaryDirectory directory;
  StoreOptions options = OptionsOf(kCases[0], directory, FileSystem::Posix());
  options.ssd.directory = directory.path() + "/file/tables";
  std::ofstream(directory.path() + "/file") << "not a directory";
  std::shared_ptr<EmbeddingStore> store;
  const Status status =
      EmbeddingStore::Create(options, testing::NoLimit(), &store);
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "'" + options.ssd.directory + "'");
  CHECK(store == nullptr);
}

TEST(ADiskWithoutDirectReadsIsAnErrorAtOnce) {
  const TemporaryDirectory directory;
  FaultyFileSystem files;
  StoreOptions options = OptionsOf(kCases[0], directory, &files);
  options.ssd.direct_reads = true;
  files.Fail(FaultyFileSystem::Call::kOpen, FaultyFileSystem::Fault::kIoError,
             /*skip=*/0);
  std::shared_ptr<EmbeddingStore> store;
  const Status status =
      EmbeddingStore::Create(options, testing::NoLimit(), &store);
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(),
                 "The file system of '" + options.ssd.directory +
                     "' cannot be read past the page cache. Received: "
                     "direct_reads=True. Leave `direct_reads` out, or name a "
                     "directory on another disk.");
  CHECK(store == nullptr);
}

}  // namespace
}  // namespace tfctr
