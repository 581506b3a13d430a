#include "tfctr_ops/cc/store/batch.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tfctr {
namespace {

// A block of keys for one thread to hash and place.
constexpr int64_t kMinBlock = 4096;

// Calls use(i, feature, id) for the keys i in [start, end) that are not absent.
template <typename Use>
void ForEachPresent(const KeyBatch& batch, int64_t start, int64_t end,
                    Use use) {
  // By value: nothing that `use` writes can then be taken for them.
  const int64_t* const ids = batch.ids;
  const int32_t* const features = batch.features;
  const int64_t num_features = batch.num_features;
  if (start == end) return;
  int64_t column = start % num_features;
  for (int64_t i = start; i < end; ++i) {
    const int32_t feature = features[column];
    if (++column == num_features) column = 0;
    if (feature >= 0) use(i, static_cast<uint32_t>(feature), ids[i]);
  }
}

}  // namespace

Status PartitionedBatch::Partition(const KeyBatch& batch, int shard_bits,
                                   uint64_t salt, int64_t feature_limit,
                                   Executor* executor) {
  if (batch.n > std::numeric_limits<int32_t>::max()) {
    return Status::InvalidArgument(
        "A batch holds at most 2147483647 keys. Received: " +
        std::to_string(batch.n) + " keys. Split the batch.");
  }
  for (int64_t f = 0; f < batch.num_features; ++f) {
    if (batch.features[f] < -1 || batch.features[f] >= feature_limit) {
      return Status::InvalidArgument(
          "`features` must lie in [0, " + std::to_string(feature_limit) +
          "), or be -1 for an absent key. Received: " +
          std::to_string(batch.features[f]) + ".");
    }
  }
  const int64_t num_shards = int64_t{1} << shard_bits;
  const int64_t num_blocks = std::max<int64_t>(
      1, std::min<int64_t>(executor->parallelism(), batch.n / kMinBlock));
  const auto block_start = [&](int64_t block) {
    return batch.n * block / num_blocks;
  };
  uint64_t* hashes = hashes_.Resize(batch.n);
  PlacedKey* keys = keys_.Resize(batch.n);
  // counts[block * num_shards + shard], then where the block's keys go.
  std::vector<int64_t> counts(static_cast<size_t>(num_blocks * num_shards), 0);

  executor->ParallelFor(num_blocks, [&](int64_t block) {
    int64_t* count = counts.data() + block * num_shards;
    ForEachPresent(batch, block_start(block), block_start(block + 1),
                   [=](int64_t i, uint32_t feature, int64_t id) {
                     const uint64_t hash = HashKey(salt, feature, id);
                     hashes[i] = hash;
                     ++count[ShardOf(hash, shard_bits)];
                   });
  });

  offsets_.assign(static_cast<size_t>(num_shards) + 1, 0);
  int64_t offset = 0;
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    offsets_[static_cast<size_t>(shard)] = offset;
    for (int64_t block = 0; block < num_blocks; ++block) {
      int64_t& count = counts[static_cast<size_t>(block * num_shards + shard)];
      const int64_t size = count;
      count = offset;
      offset += size;
    }
  }
  offsets_.back() = offset;

  executor->ParallelFor(num_blocks, [&](int64_t block) {
    int64_t* next = counts.data() + block * num_shards;
    ForEachPresent(batch, block_start(block), block_start(block + 1),
                   [=, &batch](int64_t i, uint32_t feature, int64_t id) {
                     const uint64_t hash = hashes[i];
                     keys[next[ShardOf(hash, shard_bits)]++] = {
                         id, feature, IndexTag(hash, shard_bits),
                         static_cast<int32_t>(i), batch.Count(i)};
                   });
  });
  return Status::Ok();
}

}  // namespace tfctr
