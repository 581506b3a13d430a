#include "tfctr_ops/cc/store/batch.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;

constexpr uint64_t kSalt = 0x0123456789abcdefULL;

struct Case {
  std::vector<int64_t> ids;
  std::vector<int32_t> features;
  int shard_bits;
  std::vector<int32_t> counts = {};  // Empty: each once.

  KeyBatch batch() const {
    return {ids.data(), static_cast<int64_t>(ids.size()), features.data(),
            static_cast<int64_t>(features.size()),
            counts.empty() ? nullptr : counts.data()};
  }
};

// Puts every key that is not absent at the end of its shard's, one by one.
std::vector<std::vector<PlacedKey>> PartitionOneByOne(const Case& c) {
  std::vector<std::vector<PlacedKey>> shards(size_t{1} << c.shard_bits);
  for (size_t i = 0; i < c.ids.size(); ++i) {
    const int32_t feature = c.features[i % c.features.size()];
    if (feature < 0) continue;
    const auto f = static_cast<uint32_t>(feature);
    const uint64_t hash = HashKey(kSalt, f, c.ids[i]);
    PlacedKey key = {};
    key.id = c.ids[i];
    key.feature = f;
    key.tag = IndexTag(hash, c.shard_bits);
    key.position = static_cast<int32_t>(i);
    key.count = c.counts.empty() ? 1 : c.counts[i];
    shards[ShardOf(hash, c.shard_bits)].push_back(key);
  }
  return shards;
}

void CheckPartition(const Case& c, const PartitionedBatch& batch) {
  const std::vector<std::vector<PlacedKey>> expected = PartitionOneByOne(c);
  CHECK_EQ(batch.offset(0), 0);
  for (size_t s = 0; s < expected.size(); ++s) {
    const auto shard = static_cast<int64_t>(s);
    const int64_t offset = batch.offset(shard);
    CHECK_EQ(batch.offset(shard + 1) - offset,
             static_cast<int64_t>(expected[s].size()));
    for (size_t i = 0; i < expected[s].size(); ++i) {
      const PlacedKey& key = batch.keys()[offset + static_cast<int64_t>(i)];
      CHECK_EQ(key.id, expected[s][i].id);
      CHECK_EQ(key.feature, expected[s][i].feature);
      CHECK_EQ(key.tag, expected[s][i].tag);
      CHECK_EQ(key.position, expected[s][i].position);
      CHECK_EQ(key.count, expected[s][i].count);
    }
  }
  CHECK_EQ(batch.size(), batch.offset(static_cast<int64_t>(expected.size())));
}

// With 1, 2, 3 and 4 threads, and into a batch that was used before.
void CheckAllWays(const Case& c) {
  PartitionedBatch used;
  for (const int num_threads : {1, 2, 3, 4}) {
    ThreadExecutor executor(num_threads);
    PartitionedBatch fresh;
    for (PartitionedBatch* batch : {&fresh, &used}) {
      CHECK_OK(batch->Partition(c.batch(), c.shard_bits, kSalt,
                                /*feature_limit=*/100, &executor));
      CheckPartition(c, *batch);
    }
  }
}

Case RandomCase(int64_t n, std::vector<int32_t> features, int shard_bits) {
  Case c = {{}, std::move(features), shard_bits};
  Random random(static_cast<uint64_t>(n));
  // Every id about four times, so that the order of equal keys shows.
  for (int64_t i = 0; i < n; ++i) c.ids.push_back(random.Below(n / 4 + 1));
  for (int64_t i = 0; i < n && n % 2 == 0; ++i) {
    c.counts.push_back(static_cast<int32_t>(random.Below(3)));
  }
  return c;
}

TEST(AnEmptyBatchHasNoKeys) {
  for (const int shard_bits : {0, 3}) {
    CheckAllWays(RandomCase(0, {0}, shard_bits));
    CheckAllWays(RandomCase(0, {}, shard_bits));
    CheckAllWays(RandomCase(0, {-1, 2, 3}, shard_bits));
  }
}

TEST(SmallBatchesAreOrderedByShardThenAsTheyCame) {
  for (int64_t n = 1; n < 40; ++n) {
    for (const int shard_bits : {0, 1, 6}) {
      CheckAllWays(RandomCase(n, {5}, shard_bits));
    }
  }
}

TEST(FeaturesRepeatWithEveryPeriodThatDividesTheBatch) {
  for (const int64_t period : {1, 2, 3, 4, 6, 8, 12, 24}) {
    std::vector<int32_t> features;
    for (int32_t f = 0; f < period; ++f) features.push_back(f * 3 % 7);
    CheckAllWays(RandomCase(24, features, 2));
    CheckAllWays(RandomCase(24000, features, 6));
  }
}

TEST(AbsentKeysAreLeftOut) {
  CheckAllWays(RandomCase(30, {-1}, 3));
  CheckAllWays(RandomCase(30, {-1, 0}, 3));
  CheckAllWays(RandomCase(30, {0, 1, -1}, 3));
  CheckAllWays(RandomCase(30000, {0, -1, -1, 1, -1}, 6));
  CheckAllWays(RandomCase(30000, {-1}, 6));
}

TEST(EveryKeyMayHaveAFeatureOfItsOwn) {
  Case c = RandomCase(20000, {}, 4);
  Random random(1);
  for (size_t i = 0; i < c.ids.size(); ++i) {
    c.features.push_back(static_cast<int32_t>(random.Below(101)) - 1);
  }
  CheckAllWays(c);
}

TEST(BatchesOfEverySizeAroundThreadBordersAreWhole) {
  for (const int64_t blocks : {1, 2, 3, 4, 5}) {
    for (const int64_t more : {-2, -1, 0, 1, 2}) {
      const int64_t n = blocks * 4096 + more;
      CheckAllWays(RandomCase(n, {1}, 6));
      // A period that no border between threads is a multiple of.
      CheckAllWays(RandomCase(n - n % 7, {0, 1, 2, -1, 4, 5, 6}, 3));
    }
  }
}

TEST(EveryInt64IsAnId) {
  Case c = {{}, {0, 99}, 5};
  for (const int64_t id :
       {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
        int64_t{1}, std::numeric_limits<int64_t>::max()}) {
    c.ids.insert(c.ids.end(), {id, id, id, id});
  }
  CheckAllWays(c);
}

TEST(ABadFeatureIsNamed) {
  SerialExecutor executor;
  PartitionedBatch batch;
  for (const int32_t bad : {-2, 3, std::numeric_limits<int32_t>::min(),
                            std::numeric_limits<int32_t>::max()}) {
    const Case c = {{1, 2, 3}, {0, bad, -1}, 2};
    const Status status =
        batch.Partition(c.batch(), c.shard_bits, kSalt, 3, &executor);
    CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(),
                   "`features` must lie in [0, 3), or be -1 for an absent key. "
                   "Received: " +
                       std::to_string(bad) + ".");
  }
}

TEST(ABatchOfTooManyKeysIsRefused) {
  SerialExecutor executor;
  PartitionedBatch batch;
  const int32_t feature = 0;
  const Status status = batch.Partition(
      {nullptr, int64_t{1} << 31, &feature, 1}, 2, kSalt, 1, &executor);
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "at most 2147483647 keys");
  CHECK_CONTAINS(status.message(), "Received: 2147483648 keys.");
}

TEST(ABatchCanBeUsedAgainAfterAnError) {
  SerialExecutor executor;
  PartitionedBatch batch;
  const Case bad = {{1, 2}, {7}, 2};
  CHECK(!batch.Partition(bad.batch(), 2, kSalt, 3, &executor).ok());
  const Case good = {{1, 2, 3}, {1}, 2};
  CHECK_OK(batch.Partition(good.batch(), 2, kSalt, 3, &executor));
  CheckPartition(good, batch);
}

}  // namespace
}  // namespace tfctr
