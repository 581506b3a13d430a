#include "tfctr_ops/cc/store/key_routes.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

constexpr uint64_t kShardSalt = 0xa54ff53a5f1d36f1ULL;
constexpr int kMaxShardBits = 6;
// The table of counts has a cell for each shard, owner and feature.
constexpr int64_t kMaxCells = int64_t{1} << 20;
constexpr int32_t kEmpty = -1;

int ShardBits(int64_t num_cells) {
  int bits = kMaxShardBits;
  while (bits > 0 && num_cells << bits > kMaxCells) --bits;
  return bits;
}

}  // namespace

Status KeyRoutes::Route(const KeyBatch& batch, int64_t num_features,
                        int64_t num_owners, Executor* executor) {
  n_ = batch.n;
  num_features_ = num_features;
  num_owners_ = num_owners;
  if (num_features <= 0 || num_owners <= 0 ||
      num_owners > std::numeric_limits<int32_t>::max() / num_features) {
    return Status::InvalidArgument(
        "`num_features` and `num_owners` must be positive, and their product "
        "below 2^31. Received: num_features=" +
        std::to_string(num_features) +
        ", num_owners=" + std::to_string(num_owners) + ".");
  }
  const int bits = ShardBits(num_cells());
  num_shards_ = int64_t{1} << bits;
  Status status =
      batch_.Partition(batch, bits, kShardSalt, num_features, executor);
  if (!status.ok()) return status;

  distinct_.Resize(batch_.size());
  firsts_.Resize(batch_.size());
  cells_.Resize(batch_.size());
  num_of_shard_.assign(static_cast<size_t>(num_shards_), 0);
  counts_.assign(static_cast<size_t>(num_shards_ * num_cells()), 0);
  executor->ParallelFor(num_shards_, [&](int64_t s) { FindDistinct(s); });

  starts_.resize(counts_.size());
  num_distinct_ = 0;
  for (int64_t cell = 0; cell < num_cells(); ++cell) {
    for (int64_t s = 0; s < num_shards_; ++s) {
      const auto i = static_cast<size_t>(s * num_cells() + cell);
      starts_[i] = static_cast<int32_t>(num_distinct_);
      num_distinct_ += counts_[i];
    }
  }
  return Status::Ok();
}

void KeyRoutes::FindDistinct(int64_t shard) {
  const int64_t offset = batch_.offset(shard);
  const int64_t n = batch_.offset(shard + 1) - offset;
  const PlacedKey* const keys = batch_.keys() + offset;
  int32_t* const distinct = distinct_.data() + offset;
  int32_t* const firsts = firsts_.data() + offset;
  int32_t* const cells = cells_.data() + offset;
  int32_t* const counts = counts_.data() + shard * num_cells();

  size_t capacity = 16;
  while (static_cast<int64_t>(capacity) < 2 * n) capacity *= 2;
  const size_t mask = capacity - 1;
  std::vector<int32_t> table(capacity, kEmpty);
  int32_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    const PlacedKey& key = keys[i];
    size_t slot = key.tag & mask;
    int32_t place;
    while ((place = table[slot]) != kEmpty) {
      const PlacedKey& other = keys[firsts[place]];
      if (other.id == key.id && other.feature == key.feature) break;
      slot = (slot + 1) & mask;
    }
    if (place == kEmpty) {
      place = table[slot] = found++;
      firsts[place] = static_cast<int32_t>(i);
      const int32_t owner = OwnerOf(key.feature, key.id, num_owners_);
      cells[place] = owner * static_cast<int32_t>(num_features_) +
                     static_cast<int32_t>(key.feature);
      ++counts[cells[place]];
    }
    distinct[i] = place;
  }
  num_of_shard_[static_cast<size_t>(shard)] = found;
}

void KeyRoutes::Write(Executor* executor, int64_t* messages, int32_t* sizes,
                      int32_t* places) const {
  // Where the ids of each owner go: behind its counts and all before it.
  std::vector<int64_t> shifts(static_cast<size_t>(num_owners_));
  int64_t first = 0;
  for (int64_t owner = 0; owner < num_owners_; ++owner) {
    shifts[static_cast<size_t>(owner)] = (owner + 1) * num_features_;
    int64_t num_keys = 0;
    for (int64_t f = 0; f < num_features_; ++f) {
      const int64_t cell = owner * num_features_ + f;
      int64_t count = 0;
      for (int64_t s = 0; s < num_shards_; ++s) {
        count += counts_[static_cast<size_t>(s * num_cells() + cell)];
      }
      messages[owner * num_features_ + first + f] = count;
      num_keys += count;
    }
    sizes[owner] = static_cast<int32_t>(num_features_ + num_keys);
    first += num_keys;
  }
  // Absent keys are in no shard.
  std::fill_n(places, n_, -1);
  executor->ParallelFor(num_shards_, [&](int64_t s) {
    const int64_t offset = batch_.offset(s);
    const int64_t n = batch_.offset(s + 1) - offset;
    const PlacedKey* const keys = batch_.keys() + offset;
    const int32_t* const firsts = firsts_.data() + offset;
    const int32_t* const cells = cells_.data() + offset;
    const int64_t num_found = num_of_shard_[static_cast<size_t>(s)];
    const auto row = starts_.begin() + s * num_cells();
    std::vector<int32_t> next(row, row + num_cells());
    std::vector<int32_t> place_of(static_cast<size_t>(num_found));
    for (int64_t d = 0; d < num_found; ++d) {
      const int32_t place = next[static_cast<size_t>(cells[d])]++;
      place_of[static_cast<size_t>(d)] = place;
      messages[place + shifts[static_cast<size_t>(cells[d] / num_features_)]] =
          keys[firsts[d]].id;
    }
    for (int64_t i = 0; i < n; ++i) {
      places[keys[i].position] =
          place_of[static_cast<size_t>(distinct_.data()[offset + i])];
    }
  });
}

Status KeyMessages::CountKeys(int64_t* num_keys) const {
  const int64_t* message = messages;
  int64_t left = size;
  *num_keys = 0;
  for (int64_t s = 0; s < num_senders; ++s) {
    bool good = num_features <= sizes[s] && sizes[s] <= left;
    int64_t count = 0;
    for (int64_t f = 0; good && f < num_features; ++f) {
      good = 0 <= message[f] && message[f] <= sizes[s];
      count += message[f];
    }
    if (!good || num_features + count != sizes[s]) {
      return Status::InvalidArgument(
          "A message of keys has one count for each of " +
          std::to_string(num_features) +
          " features, and as many ids as they count. Received: " +
          std::to_string(sizes[s]) + " numbers from sender " +
          std::to_string(s) +
          " that do not count so. All ranks must build the same tables.");
    }
    message += sizes[s];
    left -= sizes[s];
    *num_keys += count;
  }
  if (left == 0) return Status::Ok();
  return Status::InvalidArgument(
      "`sizes` must be those of all messages: " + std::to_string(size) +
      " in all. Received: " + std::to_string(size - left) + ".");
}

void KeyMessages::Read(int64_t* ids, int32_t* features,
                       int32_t* num_keys) const {
  const int64_t* message = messages;
  for (int64_t s = 0; s < num_senders; ++s) {
    num_keys[s] = sizes[s] - static_cast<int32_t>(num_features);
    std::copy_n(message + num_features, num_keys[s], ids);
    ids += num_keys[s];
    for (int64_t f = 0; f < num_features; ++f) {
      features = std::fill_n(features, message[f], static_cast<int32_t>(f));
    }
    message += sizes[s];
  }
}

}  // namespace tfctr
