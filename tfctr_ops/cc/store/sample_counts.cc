#include "tfctr_ops/cc/store/sample_counts.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

constexpr uint64_t kShardSalt = 0x510e527fade682d1ULL;
constexpr int kShardBits = 6;
constexpr int32_t kEmpty = -1;

// Of the `n` keys of one shard.
void CountShard(const PlacedKey* keys, int64_t n, const int32_t* samples,
                int32_t* counts) {
  size_t capacity = 16;
  while (static_cast<int64_t>(capacity) < 2 * n) capacity *= 2;
  const size_t mask = capacity - 1;
  std::vector<int32_t> table(capacity, kEmpty);  // Of keys that were counted.
  for (int64_t i = 0; i < n; ++i) {
    const PlacedKey& key = keys[i];
    const int32_t sample = samples[key.position];
    size_t slot = (key.tag ^ Mix32(static_cast<uint32_t>(sample))) & mask;
    int32_t& count = counts[key.position];
    count = 1;
    while (table[slot] != kEmpty) {
      const PlacedKey& other = keys[table[slot]];
      if (other.id == key.id && other.feature == key.feature &&
          samples[other.position] == sample) {
        count = 0;
        break;
      }
      slot = (slot + 1) & mask;
    }
    if (count == 1) table[slot] = static_cast<int32_t>(i);
  }
}

}  // namespace

Status CountSamples(const KeyBatch& batch, const int32_t* samples,
                    Executor* executor, int32_t* counts) {
  PartitionedBatch parts;
  Status status =
      parts.Partition(batch, kShardBits, kShardSalt,
                      std::numeric_limits<int32_t>::max(), executor);
  if (!status.ok()) return status;
  std::fill_n(counts, batch.n, 0);
  executor->ParallelFor(int64_t{1} << kShardBits, [&](int64_t s) {
    CountShard(parts.keys() + parts.offset(s),
               parts.offset(s + 1) - parts.offset(s), samples, counts);
  });
  return Status::Ok();
}

}  // namespace tfctr
