#include "tfctr_ops/cc/store/ssd_tier.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/checked_shard.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {
namespace {

namespace fs = std::filesystem;
using testing::BytesIn;
using testing::CheckedShard;
using testing::FaultyFileSystem;
using testing::FilesOf;
using testing::HasDirectReads;
using testing::In;
using testing::kPageDim;
using testing::NamesIn;
using testing::Open;
using testing::Random;
using testing::TemporaryDirectory;
using Names = std::vector<std::string>;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

// ------ Rows.

// Random rows of random shards are put, replaced, removed, read and compacted.
// At every step the files are within `used_bytes`, and that within the limit.
void RunRandomly(const SsdOptions& options, int64_t dim, int64_t num_shards,
                 int64_t num_keys, int64_t num_steps) {
  const std::unique_ptr<SsdTier> tier = Open(options, dim, num_shards);
  std::vector<CheckedShard> shards;
  std::set<int64_t> stale;
  tier->set_on_stale([&](int64_t shard) { stale.insert(shard); });
  for (int64_t s = 0; s < num_shards; ++s) {
    shards.emplace_back(tier.get(), s);
  }
  Random random(static_cast<uint64_t>(dim * num_shards));
  int64_t num_full = 0, num_compacted = 0;
  for (int64_t step = 0; step < num_steps; ++step) {
    const int64_t s = random.Below(num_shards);
    CheckedShard& shard = shards[static_cast<size_t>(s)];
    const int64_t key = random.Below(num_keys);
    if (random.Below(8) == 0) {
      shard.Remove(key);
    } else if (!shard.TryPut(key)) {
      CHECK(options.limit_bytes >= 0);
      CHECK(tier->is_full());
      ++num_full;
      tier->ClearFull();
      tier->FinishWrites();
      shard.Compact(/*any=*/true);
      shard.Remove(key);
    }
    if (step % 50 == 0) tier->FinishWrites();
    for (const int64_t to_compact : std::exchange(stale, {})) {
      auto& other = shards[static_cast<size_t>(to_compact)];
      while (other.Compact(/*any=*/false)) ++num_compacted;
    }
    if (step % 7 == 0) shard.CheckSome(5);
    if (step % 400 == 0) shard.CheckAll();
    const int64_t used = tier->used_bytes();
    if (options.limit_bytes >= 0) CHECK_LE(used, options.limit_bytes);
    if (step % 10 == 0) CHECK_LE(BytesIn(tier->directory()), used);
  }
  int64_t from_memory = 0;
  for (CheckedShard& shard : shards) {
    shard.CheckAll();
    from_memory += shard.in_memory();
  }
  CHECK_OK(tier->error());
  CHECK_GT(num_compacted + num_full, 0);
  CHECK_GT(from_memory, 0);
  CHECK_GT(tier->rows_read(), 0);
  if (options.limit_bytes < 0) CHECK_EQ(num_full, 0);
  for (CheckedShard& shard : shards) shard.RemoveAll();
  tier->FinishWrites();
  // Only what is open is left.
  CHECK_LE(static_cast<int64_t>(FilesOf(*tier).size()), 2 * num_shards);
}

TEST(RowsComeBackToTheBit) {
  for (const int64_t dim : {2, 30, 700, 1500}) {
    const TemporaryDirectory directory;
    SsdOptions options = In(directory);
    options.ram_bytes = 0;  // The smallest chunks.
    // Segments of a few pages, but far from the limit.
    options.limit_bytes = int64_t{3} << 20;
    RunRandomly(options, dim, 1, 250, 3000);
    options.limit_bytes = int64_t{24} << 20;
    RunRandomly(options, dim, 8, 60, 9000);
  }
}

TEST(RowsComeBackToTheBitFromDirectReads) {
  const TemporaryDirectory directory;
  if (!HasDirectReads(directory)) return;
  SsdOptions options = In(directory, int64_t{512} << 10);
  options.ram_bytes = 0;
  options.direct_reads = true;
  RunRandomly(options, 30, 1, 800, 3000);
  RunRandomly(options, 1500, 1, 25, 500);
}

TEST(AtTheLeastLimitRowsComeBackAsWell) {
  for (const int64_t dim : {4, 1000, 1500}) {
    for (const int64_t num_shards : {1, 4}) {
      const TemporaryDirectory directory;
      const int64_t least =
          SsdTier::MinLimitBytes(RowLayout(dim, 0), num_shards);
      SsdOptions options = In(directory, least);
      options.ram_bytes = 0;
      const int64_t rows_per_page =
          SegmentLayout(RowLayout(dim, 0), 0).rows_per_page;
      // About half of what the files could hold.
      const int64_t num_keys = 10 * rows_per_page;
      const int64_t num_steps =
          std::max<int64_t>(3000, 8 * num_keys * num_shards);
      RunRandomly(options, dim, num_shards, num_keys, num_steps);
    }
  }
}

TEST(RowsOfLargeChunksComeBack) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(In(directory), 100, 2);
  CheckedShard shards[] = {{tier.get(), 0}, {tier.get(), 1}};
  for (int64_t key = 0; key < 3000; ++key) {
    for (CheckedShard& shard : shards) shard.Put(key);
  }
  for (CheckedShard& shard : shards) shard.CheckAll();
  tier->FinishWrites();
  for (CheckedShard& shard : shards) shard.CheckAll();
  // Chunks of 128 KiB hold 32 pages of 9 rows, and segments four chunks.
  CHECK_EQ(tier->rows_written(), 2 * (3000 / 288 * 288));
  CHECK_EQ(FilesOf(*tier).size(), size_t{6});
}

// One thread for each shard, as the store runs them.
TEST(ShardsAreFilledAndReadAtTheSameTime) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory, int64_t{4} << 20);
  options.ram_bytes = 0;
  const std::unique_ptr<SsdTier> tier = Open(options, 60, 3);
  std::vector<std::thread> threads;
  for (int64_t s = 0; s < 3; ++s) {
    threads.emplace_back([&tier, s] {
      CheckedShard shard(tier.get(), s);
      Random random(static_cast<uint64_t>(s));
      for (int step = 0; step < 2000; ++step) {
        shard.Put(random.Below(200));
        if (step % 20 == 0) shard.CheckSome(20);
        if (step % 100 == 0) {
          while (shard.Compact(/*any=*/false)) {
          }
        }
      }
      shard.CheckAll();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(tier->error());
}

// ------ Errors.

// Fills a tier on a disk with a fault, until it says so.
Status FillUntilError(SsdTier* tier, CheckedShard* shard) {
  int64_t key = 0;
  while (shard->TryPut(key)) {
    ++key;
    if (key % 10 == 0) tier->FinishWrites();
    CHECK_LT(key, 100000);
  }
  return tier->error();
}

TEST(AfterAWriteThatFailedNothingIsTakenAndEverythingIsRead) {
  for (const Fault fault :
       {Fault::kIoError, Fault::kNoSpace, Fault::kShortWrite}) {
    const TemporaryDirectory directory;
    FaultyFileSystem files;
    files.Fail(Call::kWrite, fault, 5);
    SsdOptions options = In(directory, int64_t{1} << 20);
    options.files = &files;
    options.ram_bytes = 0;
    const std::unique_ptr<SsdTier> tier = Open(options, 100);
    CheckedShard shard(tier.get(), 0);
    CHECK_OK(tier->error());
    const Status error = FillUntilError(tier.get(), &shard);
    CHECK_EQ(error.code(), fault == Fault::kNoSpace
                               ? StatusCode::kResourceExhausted
                               : StatusCode::kUnavailable);
    CHECK_CONTAINS(error.message(), tier->directory() + "/segment-");
    CHECK_CONTAINS(error.message(), "at offset ");
    CHECK(!shard.TryPut(1));
    CHECK(!tier->is_full());  // There was room.
    tier->FinishWrites();
    shard.CheckAll();
    // The first error stays.
    tier->SetError(Status::Unavailable("another"));
    CHECK_EQ(tier->error().message(), error.message());
    CHECK_EQ(files.num_faults(), 1);
  }
}

TEST(ASegmentThatCannotBeMadeIsAnError) {
  const TemporaryDirectory directory;
  FaultyFileSystem files;
  files.Fail(Call::kOpen, Fault::kIoError, 2);
  SsdOptions options = In(directory, 40 * 4096);
  options.files = &files;
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  CheckedShard shard(tier.get(), 0);
  const Status error = FillUntilError(tier.get(), &shard);
  CHECK_EQ(error.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(error.message(), tier->directory() + "/segment-");
  CHECK_EQ(shard.size(), 8);
  shard.CheckAll();
}

// ------ Directories.

TEST(EveryTierHasADirectoryOfItsOwnAndTakesItAway) {
  const TemporaryDirectory parent;
  SsdOptions options;
  options.directory = parent.path() + "/made/on/demand";
  std::unique_ptr<SsdTier> first = Open(options);
  std::unique_ptr<SsdTier> second = Open(options);
  CHECK_NE(first->directory(), second->directory());
  CHECK_EQ(first->directory().rfind(options.directory + "/tfctr-", 0),
           size_t{0});
  CHECK(fs::exists(first->directory() + "/LOCK"));
  CHECK(fs::exists(second->directory() + "/LOCK"));
  CheckedShard shard(first.get(), 0);
  shard.Put(1);
  second.reset();
  CHECK(fs::exists(first->directory()));
  shard.CheckAll();
  first.reset();
  // The lock of the parent stays: others may be waiting for it.
  CHECK_EQ(NamesIn(options.directory), (Names{".tfctr-lock"}));
}

TEST(LeftOversAreRemovedAndEverythingElseStays) {
  const TemporaryDirectory parent;
  const auto make = [&](const std::string& name, const Names& files) {
    fs::create_directories(parent.path() + "/" + name);
    for (const std::string& file : files) {
      std::ofstream(parent.path() + "/" + name + "/" + file) << "something";
    }
  };
  make("tfctr-1-0", {"LOCK", "segment-000000000001"});
  make("tfctr-99999-12", {"LOCK"});
  make("tfctr-1-1", {"LOCK"});
  make("checkpoints", {"LOCK", "segment-000000000001"});
  make("nottfctr-1-0", {"LOCK"});
  std::ofstream(parent.path() + "/tfctr-notes") << "not a directory";
  std::unique_ptr<FileLock> lock;
  CHECK_OK(FileSystem::Posix()->Lock(parent.path() + "/tfctr-1-1/LOCK", false,
                                     &lock));
  const std::unique_ptr<SsdTier> tier = Open(In(parent));
  const std::string own = fs::path(tier->directory()).filename().string();
  Names expected = {".tfctr-lock", "checkpoints", "nottfctr-1-0",
                    "tfctr-1-1",   "tfctr-notes", own};
  std::sort(expected.begin(), expected.end());
  CHECK_EQ(NamesIn(parent.path()), expected);
  CHECK_EQ(NamesIn(parent.path() + "/checkpoints").size(), size_t{2});
}

TEST(TiersOfManyThreadsComeAndGoInOneDirectory) {
  const TemporaryDirectory parent;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&parent, t] {
      for (int64_t i = 0; i < 30; ++i) {
        const std::unique_ptr<SsdTier> tier = Open(In(parent));
        CheckedShard shard(tier.get(), 0);
        for (int64_t key = 0; key < 10 * t; ++key) shard.Put(key);
        tier->Seal(0);
        tier->FinishWrites();
        shard.CheckAll();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(NamesIn(parent.path()), (Names{".tfctr-lock"}));
}

TEST(ADirectoryThatCannotBeUsedIsNamed) {
  const TemporaryDirectory parent;
  SsdOptions options;
  options.directory = parent.path() + "/file";
  std::ofstream(options.directory) << "not a directory";
  std::unique_ptr<SsdTier> tier;
  const Status status = SsdTier::Open(options, RowLayout(4, 0), 1, &tier);
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), options.directory);
  CHECK(tier == nullptr);
}

TEST(WhateverFailsWhileATierIsOpenedIsAnErrorOrDoesNotMatter) {
  for (int64_t n = 0;; ++n) {
    const TemporaryDirectory parent;
    fs::create_directories(parent.path() + "/tfctr-1-0");
    std::ofstream(parent.path() + "/tfctr-1-0/LOCK") << "";
    FaultyFileSystem files;
    files.Fail(Call::kOther, Fault::kIoError, n);
    SsdOptions options = In(parent);
    options.files = &files;
    std::unique_ptr<SsdTier> tier;
    const Status status = SsdTier::Open(options, RowLayout(4, 0), 1, &tier);
    if (files.num_faults() == 0) {
      CHECK_OK(status);
      CHECK_GT(n, 5);
      break;
    }
    CHECK_EQ(status.ok(), tier != nullptr);
    if (!status.ok()) {
      CHECK_CONTAINS(status.message(), parent.path());
      CHECK_OK(SsdTier::Open(options, RowLayout(4, 0), 1, &tier));
    }
    CheckedShard shard(tier.get(), 0);
    shard.Put(1);
    shard.CheckAll();
  }
}

}  // namespace
}  // namespace tfctr
