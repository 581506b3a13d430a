// Segments that an SSD tier gives up, and the limit that makes it do so.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/checked_shard.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {
namespace {

using testing::Bytes;
using testing::BytesIn;
using testing::CheckedShard;
using testing::FilesOf;
using testing::FourRows;
using testing::In;
using testing::kPageDim;
using testing::Open;
using testing::Random;
using testing::RandomRow;
using testing::TemporaryDirectory;
using Purpose = SsdTier::Purpose;

TEST(AShardIsStaleWhenFewerThanHalfOfItsRowsAreLive) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(FourRows(directory), kPageDim);
  CHECK_EQ(tier->layout().capacity(), 4);
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard shard(tier.get(), 0);
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
  CheckedShard stays(tier.get(), 1);
  stays.Put(5);
  {
    CheckedShard cleared(tier.get(), 0);
    for (int64_t key = 0; key < 10; ++key) cleared.Put(key);
  }
  tier->Clear(0);
  tier->FinishWrites();
  CHECK_EQ(tier->num_live(0), 0);
  CHECK_EQ(tier->segments(0).size(), size_t{0});
  CHECK_EQ(FilesOf(*tier).size(), size_t{1});
  stays.CheckAll();
  CheckedShard again(tier.get(), 0);
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
    std::vector<CheckedShard> shards;
    for (int64_t s = 0; s < num_shards; ++s) {
      shards.emplace_back(tier.get(), s);
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
  CheckedShard shard(tier.get(), 0);
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

}  // namespace
}  // namespace tfctr
