#include "tfctr_ops/cc/store/ssd_tier.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;
using testing::Random;
using testing::TemporaryDirectory;
using testing::ThreadExecutor;
using Bytes = std::vector<std::byte>;
using Names = std::vector<std::string>;
using Purpose = SsdTier::Purpose;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

SsdOptions In(const TemporaryDirectory& directory, int64_t limit_bytes = -1) {
  SsdOptions options;
  options.directory = directory.path();
  options.limit_bytes = limit_bytes;
  return options;
}

std::unique_ptr<SsdTier> Open(const SsdOptions& options, int64_t dim = 4,
                              int64_t num_shards = 1) {
  std::unique_ptr<SsdTier> tier;
  CHECK_OK(SsdTier::Open(options, RowLayout(dim, 0), num_shards, &tier));
  return tier;
}

// Of all files below; some may vanish while they are counted.
int64_t BytesIn(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto size = entry.file_size(error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Names NamesIn(const std::string& directory) {
  Names names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The files of the segments.
Names FilesOf(const SsdTier& tier) {
  Names names = NamesIn(tier.directory());
  names.erase(std::remove(names.begin(), names.end(), "LOCK"), names.end());
  return names;
}

Bytes RandomRow(int64_t row_bytes, Random* random) {
  Bytes row(static_cast<size_t>(row_bytes));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random->Below(256));
  RowHeader* header = RowLayout::Header(row.data());
  header->known = 1;
  header->live = 1;
  header->score = 0;
  header->dirty = 0;
  header->mark = 0;
  return row;
}

// One shard of a tier beside a map that is told the same. It looks after its
// segments as a store does.
class CheckedShard {
 public:
  CheckedShard(SsdTier* tier, int64_t shard, Executor* executor)
      : tier_(*tier),
        shard_(shard),
        executor_(*executor),
        random_(static_cast<uint64_t>(shard) + 1) {}

  // Gives the key a new row; false if there is no room.
  bool TryPut(int64_t key) {
    const Bytes row = RandomRow(tier_.layout().row_bytes, &random_);
    Location location = kNowhere;
    if (!tier_.Append(shard_, row.data(), Purpose::kEviction, &location)) {
      return false;
    }
    Remove(key);
    Set(key, row, location);
    return true;
  }
  void Put(int64_t key) { CHECK(TryPut(key)); }

  void Remove(int64_t key) {
    const auto it = rows_.find(key);
    if (it == rows_.end()) return;
    tier_.Drop(shard_, it->second.second, Purpose::kEviction);
    keys_.erase(it->second.second);
    rows_.erase(it);
  }

  void RemoveAll() {
    while (!rows_.empty()) Remove(rows_.begin()->first);
  }

  // Moves the rows of the stalest segment, if there is one.
  bool Compact(bool any) {
    const SegmentLayout& layout = tier_.layout();
    size_t place = 0;
    const std::shared_ptr<Segment> segment =
        tier_.FindStale(shard_, any, &place);
    if (segment == nullptr) return false;
    const int64_t num_pages =
        (segment->num_rows() + layout.rows_per_page - 1) / layout.rows_per_page;
    const AlignedBytes pages(num_pages * layout.page_bytes);
    CHECK_OK(tier_.ReadPages(segment.get(), 0, num_pages, pages.data()));
    const int64_t num_rows = segment->num_rows();
    for (int64_t r = 0; r < num_rows; ++r) {
      const Location from = tier_.LocationOf(place, r);
      CHECK_EQ(keys_.count(from) == 1, segment->is_live(r));
      if (!segment->is_live(r)) continue;
      Location to = kNowhere;
      CHECK(tier_.Append(shard_, pages.data() + layout.InPages(r),
                         Purpose::kCompaction, &to));
      tier_.Drop(shard_, from, Purpose::kCompaction);
      const int64_t key = keys_.at(from);
      keys_.erase(from);
      Set(key, rows_.at(key).first, to);
    }
    CHECK(tier_.segments(shard_)[place] != segment);
    return true;
  }

  Status TryRead(const std::set<int64_t>& keys) {
    std::vector<Bytes> got(keys.size(), Bytes(row_bytes()));
    std::vector<SsdTier::Read> reads;
    size_t i = 0;
    for (const int64_t key : keys) {
      SsdTier::Read read =
          tier_.Prepare(shard_, rows_.at(key).second, got[i++].data());
      in_memory_ += read.segment == nullptr;
      if (read.segment != nullptr) reads.push_back(std::move(read));
    }
    random_.Shuffle(&reads);
    Status status;
    // As a store does it; ReadAll alone must give the same.
    if (random_.Below(2) == 0) status = tier_.ReadCached(&reads);
    if (status.ok()) status = tier_.ReadAll(&reads);
    if (!status.ok()) return status;
    i = 0;
    for (const int64_t key : keys) CHECK(got[i++] == rows_.at(key).first);
    return status;
  }

  void CheckSome(int64_t n) {
    std::set<int64_t> keys;
    for (int64_t i = 0; i < n && !rows_.empty(); ++i) {
      auto it = rows_.lower_bound(random_.Below(rows_.rbegin()->first + 1));
      keys.insert(it->first);
    }
    CHECK_OK(TryRead(keys));
  }

  void CheckAll() {
    CHECK_EQ(tier_.num_live(shard_), size());
    std::set<int64_t> keys;
    for (const auto& [key, row] : rows_) keys.insert(key);
    CHECK_OK(TryRead(keys));
    CheckPages();
  }

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  size_t row_bytes() const {
    return static_cast<size_t>(tier_.layout().row_bytes);
  }
  // How many rows were read without the file.
  int64_t in_memory() const { return in_memory_; }
  Location location(int64_t key) const { return rows_.at(key).second; }

 private:
  void Set(int64_t key, const Bytes& row, Location location) {
    CHECK(keys_.emplace(location, key).second);
    rows_[key] = {row, location};
  }

  // The same rows, page by page.
  void CheckPages() {
    const SegmentLayout& layout = tier_.layout();
    std::vector<std::shared_ptr<Segment>> segments = tier_.segments(shard_);
    const AlignedBytes pages(2 * layout.page_bytes);
    int64_t num_live = 0;
    for (size_t place = 0; place < segments.size(); ++place) {
      if (segments[place] == nullptr) continue;
      const int64_t num_rows = segments[place]->num_rows();
      for (int64_t first = 0; first < num_rows;
           first += 2 * layout.rows_per_page) {
        CHECK_OK(tier_.CopyPages(segments[place].get(),
                                 first / layout.rows_per_page, 2,
                                 pages.data()));
        const int64_t end = first + 2 * layout.rows_per_page;
        for (int64_t r = first; r < std::min(num_rows, end); ++r) {
          if (!segments[place]->is_live(r)) continue;
          ++num_live;
          std::byte* row = pages.data() + layout.InPages(r - first);
          RowLayout::Header(row)->mark = 0;
          const int64_t key = keys_.at(tier_.LocationOf(place, r));
          CHECK(std::equal(row, row + layout.row_bytes,
                           rows_.at(key).first.begin()));
        }
      }
    }
    CHECK_EQ(num_live, size());
  }

  SsdTier& tier_;
  const int64_t shard_;
  Executor& executor_;
  Random random_;
  std::map<int64_t, std::pair<Bytes, Location>> rows_;
  std::map<Location, int64_t> keys_;
  int64_t in_memory_ = 0;
};

// ------ Rows.

// Random rows of random shards are put, replaced, removed, read and compacted.
// At every step the files are within `used_bytes`, and that within the limit.
void RunRandomly(const SsdOptions& options, int64_t dim, int64_t num_shards,
                 int64_t num_keys, int64_t num_steps) {
  const std::unique_ptr<SsdTier> tier = Open(options, dim, num_shards);
  ThreadExecutor executor(2);
  std::vector<CheckedShard> shards;
  std::set<int64_t> stale;
  tier->set_on_stale([&](int64_t shard) { stale.insert(shard); });
  for (int64_t s = 0; s < num_shards; ++s) {
    shards.emplace_back(tier.get(), s, &executor);
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

// Whether files there can be read past the page cache.
bool HasDirectReads(const TemporaryDirectory& directory) {
  const std::string path = directory.path() + "/file";
  std::unique_ptr<File> file;
  CHECK_OK(FileSystem::Posix()->Open(path, FileSystem::Mode::kCreate, &file));
  return FileSystem::Posix()
      ->Open(path, FileSystem::Mode::kReadDirect, &file)
      .ok();
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
  ThreadExecutor executor(2);
  CheckedShard shards[] = {{tier.get(), 0, &executor},
                           {tier.get(), 1, &executor}};
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
      SerialExecutor executor;
      CheckedShard shard(tier.get(), s, &executor);
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

// ------ Segments that are given up.

// Segments of four rows, one in a page.
constexpr int64_t kPageDim = 1000;
SsdOptions FourRows(const TemporaryDirectory& directory) {
  return In(directory, 40 * 4096);
}

TEST(AShardIsStaleWhenFewerThanHalfOfItsRowsAreLive) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  CHECK_EQ(tier->layout().capacity(), 4);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  int num_stale = 0;
  tier->set_on_stale([&](int64_t s) {
    CHECK_EQ(s, 0);
    ++num_stale;
  });
  for (int64_t key = 0; key < 10; ++key) shard.Put(key);
  tier->FinishWrites();
  CHECK_EQ(FilesOf(*tier).size(), size_t{3});
  size_t place = 99;
  CHECK(tier->FindStale(0, false, &place) == nullptr);
  CHECK(tier->FindStale(0, true, &place) == nullptr);
  for (const int64_t key : {5, 6, 7}) shard.Remove(key);
  CHECK(tier->FindStale(0, false, &place) == nullptr);
  CHECK(tier->FindStale(0, true, &place) == tier->segments(0)[1]);
  CHECK_EQ(place, size_t{1});
  for (const int64_t key : {0, 1}) shard.Remove(key);
  CHECK_EQ(num_stale, 0);  // Five of ten are live.
  shard.Remove(9);
  CHECK_EQ(num_stale, 1);
  CHECK(tier->FindStale(0, false, &place) == tier->segments(0)[1]);
  CHECK(shard.Compact(/*any=*/false));
  // Four of seven are left.
  CHECK(!shard.Compact(/*any=*/false));
  shard.CheckAll();
  // Its place is used again.
  CHECK(tier->segments(0)[1] == nullptr);
  for (int64_t key = 10; key < 14; ++key) shard.Put(key);
  CHECK(tier->segments(0)[1] != nullptr);
  shard.CheckAll();
}

TEST(TheSegmentWithTheSmallestShareOfLiveRowsIsCompactedFirst) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 6; ++key) shard.Put(key);
  tier->Seal(0);  // The second has two rows.
  for (int64_t key = 6; key < 10; ++key) shard.Put(key);
  tier->FinishWrites();
  for (const int64_t key : {0, 1, 4, 6, 7, 8}) shard.Remove(key);
  size_t place = 99;
  // Of four one is live, of two one and of four two.
  CHECK(tier->FindStale(0, true, &place) == tier->segments(0)[2]);
  CHECK_EQ(place, size_t{2});
  CHECK(shard.Compact(/*any=*/true));
  // Now half of each: the first of them.
  CHECK(tier->FindStale(0, true, &place) == tier->segments(0)[0]);
  shard.CheckAll();
}

TEST(ASegmentThatIsNearlyWholeIsNotCompactedForTheSakeOfOthers) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 7; ++key) shard.Put(key);
  tier->FinishWrites();
  // All that is stale but one is in the open segment.
  for (const int64_t key : {0, 4, 5, 6}) shard.Remove(key);
  CHECK(!shard.Compact(/*any=*/false));
  CHECK(shard.Compact(/*any=*/true));
  shard.CheckAll();
}

// Rows that outlasted one compaction will outlast the next: apart from those
// that come and go, they are moved seldom.
TEST(RowsThatMoveGoToASegmentOfTheirOwn) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 8; ++key) shard.Put(key);
  tier->FinishWrites();
  for (const int64_t key : {0, 1, 2, 4, 5}) shard.Remove(key);
  CHECK(shard.Compact(/*any=*/false));  // Moves key 3.
  shard.Put(8);
  const int64_t capacity = tier->layout().capacity();
  CHECK(shard.location(3) / capacity != shard.location(8) / capacity);
  shard.CheckAll();
}

// More segments than one, so that the stalest has few rows to move; more files
// than that are not worth it.
TEST(SegmentsHaveAShareOfTheLiveRows) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory);  // Segments of 64 MiB.
  options.ram_bytes = 0;               // Chunks of a page, here of one row.
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 400; ++key) shard.Put(key);
  tier->FinishWrites();
  for (const std::shared_ptr<Segment>& segment : tier->segments(0)) {
    CHECK_LE(4, segment->num_rows());
    CHECK_LE(segment->num_rows(), 400 / 8);
  }
  CHECK_LE(tier->segments(0).size(), size_t{8 * 7});
  shard.CheckAll();
}

// Every row has many versions, as in training: what is written in vain and what
// is taken on disk both have a bound.
TEST(CompactionKeepsTheDiskBelowTwiceTheLiveRows) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory);
  options.ram_bytes = 0;
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  Random random(1);
  constexpr int64_t kKeys = 400, kRounds = 8;
  for (int64_t key = 0; key < kKeys; ++key) shard.Put(key);
  for (int64_t i = 0; i < kRounds * kKeys; ++i) {
    shard.Put(random.Below(kKeys));
    if (i % 16 != 0) continue;
    tier->FinishWrites();
    while (shard.Compact(/*any=*/false)) {
    }
    int64_t rows = 0;
    for (const std::shared_ptr<Segment>& segment : tier->segments(0)) {
      if (segment != nullptr) rows += segment->num_rows();
    }
    CHECK_LE(rows, 2 * kKeys + 16);
  }
  // Segment by segment at half stale, it would be twice as many.
  CHECK_LE(tier->rows_written(), (1 + kRounds + kRounds / 2) * kKeys);
  shard.CheckAll();
}

TEST(AnEmptySegmentGoesWithoutCompaction) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 8; ++key) shard.Put(key);
  tier->FinishWrites();
  CHECK_EQ(tier->used_bytes(), 2 * 5 * 4096);
  for (int64_t key = 0; key < 4; ++key) shard.Remove(key);
  CHECK_EQ(FilesOf(*tier).size(), size_t{1});
  CHECK_EQ(tier->used_bytes(), 5 * 4096);
  shard.CheckAll();
}

// An open segment of a small table must not fill up with stale rows.
TEST(AnOpenSegmentOfStaleRowsIsSealed) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory);  // Segments of 64 MiB.
  options.ram_bytes = 0;
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  for (int i = 0; i < 1000; ++i) {
    shard.Put(i % 5);
    if (i % 20 == 0) tier->FinishWrites();
    while (shard.Compact(/*any=*/false)) {
    }
    CHECK_LE(tier->used_bytes(), 100 * 4096);
  }
  shard.CheckAll();
}

TEST(AClearedShardHasNoRowsAndNoFiles) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(In(directory), kPageDim, 2);
  SerialExecutor executor;
  CheckedShard stays(tier.get(), 1, &executor);
  stays.Put(5);
  {
    CheckedShard cleared(tier.get(), 0, &executor);
    for (int64_t key = 0; key < 10; ++key) cleared.Put(key);
  }
  tier->Clear(0);
  tier->FinishWrites();
  CHECK_EQ(tier->num_live(0), 0);
  CHECK_EQ(tier->segments(0).size(), size_t{0});
  CHECK_EQ(FilesOf(*tier).size(), size_t{1});
  stays.CheckAll();
  CheckedShard again(tier.get(), 0, &executor);
  for (int64_t key = 0; key < 10; ++key) again.Put(key);
  again.CheckAll();
}

TEST(AReadKeepsItsSegmentAlive) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  Random random(1);
  const Bytes row = RandomRow(tier->layout().row_bytes, &random);
  Location locations[4];
  for (Location& location : locations) {
    CHECK(tier->Append(0, row.data(), Purpose::kEviction, &location));
  }
  tier->FinishWrites();
  Bytes got(row.size());
  std::vector<SsdTier::Read> reads;
  reads.push_back(tier->Prepare(0, locations[2], got.data()));
  CHECK(reads[0].segment != nullptr);
  for (const Location location : locations) {
    tier->Drop(0, location, Purpose::kEviction);
  }
  CHECK_EQ(FilesOf(*tier).size(), size_t{1});
  CHECK_EQ(tier->used_bytes(), 5 * 4096);
  CHECK_OK(tier->ReadAll(&reads));
  CHECK(got == row);
  reads.clear();
  CHECK_EQ(FilesOf(*tier).size(), size_t{0});
  CHECK_EQ(tier->used_bytes(), 0);
}

// ------ The limit.

TEST(AtTheLimitRowsAreRefusedUntilThereIsRoomAgain) {
  for (const int64_t num_shards : {1, 3}) {
    const TemporaryDirectory directory;
    SsdOptions options = In(
        directory, SsdTier::MinLimitBytes(RowLayout(kPageDim, 0), num_shards));
    CHECK_EQ(options.limit_bytes, num_shards * 20 * 4096);
    const std::unique_ptr<SsdTier> tier = Open(options, kPageDim, num_shards);
    CHECK_EQ(tier->limit_bytes(), options.limit_bytes);
    SerialExecutor executor;
    std::vector<CheckedShard> shards;
    for (int64_t s = 0; s < num_shards; ++s) {
      shards.emplace_back(tier.get(), s, &executor);
    }
    for (int round = 0; round < 3; ++round) {
      int64_t key = 0;
      CHECK(!tier->is_full());
      while (shards[static_cast<size_t>(key % num_shards)].TryPut(key)) {
        ++key;
        CHECK_LE(tier->used_bytes(), options.limit_bytes);
      }
      CHECK(tier->is_full());
      CHECK_OK(tier->error());
      tier->FinishWrites();
      CHECK_LE(BytesIn(tier->directory()), options.limit_bytes);
      CHECK_GE(key, 10 * num_shards);
      for (CheckedShard& shard : shards) shard.CheckAll();
      for (CheckedShard& shard : shards) shard.RemoveAll();
      tier->ClearFull();
    }
  }
}

// What is kept back lets a full tier move rows, and so give up files.
TEST(AFullTierCanBeCompacted) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  int64_t key = 0;
  while (shard.TryPut(key)) ++key;
  // One row of every segment is stale: the least that compaction can gain.
  for (int64_t stale = 0; stale < key; stale += 4) shard.Remove(stale);
  tier->FinishWrites();
  const size_t files = FilesOf(*tier).size();
  while (shard.Compact(/*any=*/true)) {
    tier->FinishWrites();
    CHECK_LE(tier->used_bytes(), 40 * 4096);
    CHECK_LE(BytesIn(tier->directory()), tier->used_bytes());
  }
  CHECK_LT(FilesOf(*tier).size(), files);
  shard.CheckAll();
  CHECK(shard.TryPut(key));
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
    SerialExecutor executor;
    CheckedShard shard(tier.get(), 0, &executor);
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
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  const Status error = FillUntilError(tier.get(), &shard);
  CHECK_EQ(error.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(error.message(), tier->directory() + "/segment-");
  CHECK_EQ(shard.size(), 8);
  shard.CheckAll();
}

// The only segment of a tier with 40 rows, as a file.
struct WrittenTier {
  WrittenTier(const TemporaryDirectory& directory, bool direct_reads)
      : options(In(directory, int64_t{1} << 20)) {
    options.ram_bytes = 0;
    options.direct_reads = direct_reads;
    tier = Open(options, 100);
    shard = std::make_unique<CheckedShard>(tier.get(), 0, &executor);
    for (int64_t key = 0; key < 40; ++key) shard->Put(key);
    tier->FinishWrites();
    path = tier->directory() + "/" + FilesOf(*tier).at(0);
  }

  SsdOptions options;
  std::unique_ptr<SsdTier> tier;
  SerialExecutor executor;
  std::unique_ptr<CheckedShard> shard;
  std::string path;
};

TEST(ADamagedRowIsNamedByFileAndOffset) {
  for (const bool direct_reads : {false, true}) {
    const TemporaryDirectory directory;
    if (direct_reads && !HasDirectReads(directory)) return;
    WrittenTier written(directory, direct_reads);
    const SegmentLayout& layout = written.tier->layout();
    for (const int64_t key : {0, 8, 9, 17}) {
      const int64_t offset = layout.RowOffset(written.shard->location(key));
      for (int64_t byte = offset; byte < offset + layout.row_bytes;
           byte += 13) {
        std::fstream file(written.path,
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(byte);
        const auto good = static_cast<char>(file.get());
        file.seekp(byte);
        file.put(static_cast<char>(good ^ 4)).flush();
        for (const std::set<int64_t>& keys :
             {std::set<int64_t>{key}, std::set<int64_t>{0, 8, 9, 10, 17, 39}}) {
          const Status status = written.shard->TryRead(keys);
          CHECK_EQ(status.code(), StatusCode::kDataLoss);
          CHECK_CONTAINS(status.message(), "'" + written.path +
                                               "' is damaged at offset " +
                                               std::to_string(offset) + ":");
        }
        CHECK_OK(written.shard->TryRead({1, 7, 11, 18}));
        file.seekp(byte);
        file.put(good).flush();
      }
    }
    written.shard->CheckAll();
  }
}

TEST(ADamagedPageIsNamedWhenItIsCopied) {
  const TemporaryDirectory directory;
  WrittenTier written(directory, false);
  const int64_t byte = 2 * 4096 + 4095;  // No row is there.
  std::fstream file(written.path,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(byte);
  file.put('x').flush();
  const AlignedBytes pages(4 * 4096);
  Segment* segment = written.tier->segments(0)[0].get();
  const std::string expected =
      "'" + written.path + "' is damaged at offset 8192:";
  for (const Status& status :
       {written.tier->ReadPages(segment, 0, 3, pages.data()),
        written.tier->CopyPages(segment, 0, 3, pages.data())}) {
    CHECK_EQ(status.code(), StatusCode::kDataLoss);
    CHECK_CONTAINS(status.message(), expected);
  }
  CHECK_OK(written.tier->ReadPages(segment, 2, 1, pages.data()));
}

// Makes the system forget what it has of the file. Returns whether it did.
bool DropCached(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY);
  fdatasync(descriptor);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  char byte;
  iovec piece = {&byte, 1};
  const ssize_t got = preadv2(descriptor, &piece, 1, 0, RWF_NOWAIT);
  close(descriptor);
  return got < 0;
}

// A thread that waits for a page of a map keeps the others' reads waiting, so
// maps are used only as long as the page cache has nearly everything.
TEST(FilesAreReadAsMemoryWhileTheyAreCached) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory);
  options.ram_bytes = 0;
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  SerialExecutor executor;
  CheckedShard shard(tier.get(), 0, &executor);
  constexpr int64_t kKeys = 100;  // Each in a page of its own.
  for (int64_t key = 0; key < kKeys; ++key) shard.Put(key);
  tier->FinishWrites();
  Bytes row(static_cast<size_t>(tier->layout().row_bytes));
  const auto read_cached = [&](int64_t key) {
    std::vector<SsdTier::Read> reads;
    reads.push_back(tier->Prepare(0, shard.location(key), row.data()));
    CHECK(reads[0].segment != nullptr);
    CHECK_OK(tier->ReadCached(&reads));
    return reads.empty();
  };
  CHECK(tier->is_warm());
  for (const auto& segment : tier->segments(0)) {
    if (!DropCached(segment->path())) return;  // A file system in memory.
  }
  for (int64_t key = 0; key < kKeys; ++key) read_cached(key);
  CHECK(!tier->is_warm());
  shard.CheckAll();
  // Now they are cached, which takes many reads to be believed.
  int64_t num_reads = 0;
  while (!tier->is_warm()) read_cached(num_reads++ % kKeys);
  CHECK_LT(1000, num_reads);
  shard.CheckAll();
}

TEST(AFileThatLostItsEndIsNamed) {
  const TemporaryDirectory directory;
  WrittenTier written(directory, false);
  fs::resize_file(written.path, 5000);
  const Status status = written.shard->TryRead({30});
  CHECK_EQ(status.code(), StatusCode::kDataLoss);
  CHECK_CONTAINS(status.message(), written.path);
  CHECK_OK(written.shard->TryRead({0}));
}

TEST(AReadThatFailsOnceIsAnErrorOnce) {
  for (const bool direct_reads : {false, true}) {
    for (const Call call : {Call::kRead, Call::kOpen}) {
      const TemporaryDirectory directory;
      if (direct_reads && !HasDirectReads(directory)) return;
      if (call == Call::kOpen && !direct_reads) continue;
      FaultyFileSystem files;
      SsdOptions options = In(directory, FourRows(directory).limit_bytes);
      options.files = &files;
      options.direct_reads = direct_reads;
      const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
      SerialExecutor executor;
      CheckedShard shard(tier.get(), 0, &executor);
      for (int64_t key = 0; key < 8; ++key) shard.Put(key);
      tier->FinishWrites();
      files.Fail(call, Fault::kIoError, 0);
      const Status status = shard.TryRead({0, 3, 5});
      CHECK_EQ(status.code(), StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), tier->directory() + "/segment-");
      CHECK_OK(tier->error());
      shard.CheckAll();
    }
  }
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
  SerialExecutor executor;
  CheckedShard shard(first.get(), 0, &executor);
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
      SerialExecutor executor;
      for (int64_t i = 0; i < 30; ++i) {
        const std::unique_ptr<SsdTier> tier = Open(In(parent));
        CheckedShard shard(tier.get(), 0, &executor);
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
    SerialExecutor executor;
    CheckedShard shard(tier.get(), 0, &executor);
    shard.Put(1);
    shard.CheckAll();
  }
}

}  // namespace
}  // namespace tfctr
