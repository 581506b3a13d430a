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

// How many numbers of a message hold so many counts.
int64_t CountWords(int64_t num_keys) { return (num_keys + 1) / 2; }

// Counts that add up to more, no rule tells apart.
int32_t Clamp(int64_t count) {
  return static_cast<int32_t>(
      std::min<int64_t>(count, std::numeric_limits<int32_t>::max()));
}

int ShardBits(int64_t num_cells) {
  int bits = kMaxShardBits;
  while (bits > 0 && num_cells << bits > kMaxCells) --bits;
  return bits;
}

}  // namespace

Status KeyRoutes::Route(const KeyBatch& batch,
                        const std::vector<int64_t>& num_features,
                        int64_t num_owners, bool sends_counts,
                        Executor* executor) {
  asked_ = batch;
  sends_counts_ = sends_counts;
  num_owners_ = num_owners;
  num_features_ = 0;
  bool is_positive = num_owners > 0 && !num_features.empty();
  for (const int64_t n : num_features) {
    is_positive = is_positive && n > 0;
    num_features_ += n;
  }
  if (!is_positive ||
      num_owners > std::numeric_limits<int32_t>::max() / num_features_) {
    return Status::InvalidArgument(
        "`num_features` and `num_owners` must be positive, and their product "
        "below 2^31. Received: num_features=" +
        std::to_string(num_features_) +
        " in all, num_owners=" + std::to_string(num_owners) + ".");
  }
  number_in_table_.clear();
  for (const int64_t n : num_features) {
    for (int64_t f = 0; f < n; ++f) {
      number_in_table_.push_back(static_cast<uint32_t>(f));
    }
  }
  const int bits = ShardBits(num_cells());
  num_shards_ = int64_t{1} << bits;
  Status status =
      batch_.Partition(batch, bits, kShardSalt, num_features_, executor);
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
      const int32_t owner =
          OwnerOf(number_in_table_[key.feature], key.id, num_owners_);
      cells[place] = owner * static_cast<int32_t>(num_features_) +
                     static_cast<int32_t>(key.feature);
      ++counts[cells[place]];
    }
    distinct[i] = place;
  }
  num_of_shard_[static_cast<size_t>(shard)] = found;
}

int64_t KeyRoutes::NumKeysOf(int64_t owner, int64_t feature) const {
  const int64_t cell = owner * num_features_ + feature;
  int64_t num_keys = 0;
  for (int64_t s = 0; s < num_shards_; ++s) {
    num_keys += counts_[static_cast<size_t>(s * num_cells() + cell)];
  }
  return num_keys;
}

int64_t KeyRoutes::message_size() const {
  int64_t size = num_cells() + num_distinct_;
  for (int64_t owner = 0; sends_counts_ && owner < num_owners_; ++owner) {
    int64_t num_keys = 0;
    for (int64_t f = 0; f < num_features_; ++f) num_keys += NumKeysOf(owner, f);
    size += CountWords(num_keys);
  }
  return size;
}

void KeyRoutes::Write(Executor* executor, int64_t* messages, int32_t* sizes,
                      int32_t* num_keys, int32_t* places) const {
  // Where the ids and the counts of each owner go, and its first key.
  std::vector<int64_t*> ids_of(static_cast<size_t>(num_owners_));
  std::vector<int32_t*> counts_of(static_cast<size_t>(num_owners_));
  std::vector<int32_t> first_of(static_cast<size_t>(num_owners_));
  int64_t* message = messages;
  int32_t first = 0;
  for (int64_t owner = 0; owner < num_owners_; ++owner) {
    const auto o = static_cast<size_t>(owner);
    int64_t n = 0;
    for (int64_t f = 0; f < num_features_; ++f) {
      n += message[f] = NumKeysOf(owner, f);
    }
    ids_of[o] = message + num_features_;
    counts_of[o] = reinterpret_cast<int32_t*>(ids_of[o] + n);
    first_of[o] = first;
    int64_t size = num_features_ + n;
    if (sends_counts_) {
      // Half of the last number may be left over.
      if (n % 2 == 1) counts_of[o][n] = 0;
      size += CountWords(n);
    }
    sizes[owner] = static_cast<int32_t>(size);
    num_keys[owner] = static_cast<int32_t>(n);
    first += num_keys[owner];
    message += size;
  }
  // Absent keys are in no shard.
  std::fill_n(places, asked_.n, -1);
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
      const auto owner = static_cast<size_t>(cells[d] / num_features_);
      ids_of[owner][place - first_of[owner]] = keys[firsts[d]].id;
    }
    std::vector<int64_t> counts(sends_counts_ ? place_of.size() : 0);
    for (int64_t i = 0; i < n; ++i) {
      const auto d = static_cast<size_t>(distinct_.data()[offset + i]);
      places[keys[i].position] = place_of[d];
      if (sends_counts_) counts[d] += asked_.Count(keys[i].position);
    }
    for (size_t d = 0; d < counts.size(); ++d) {
      const auto owner = static_cast<size_t>(cells[d] / num_features_);
      counts_of[owner][place_of[d] - first_of[owner]] = Clamp(counts[d]);
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
    const int64_t words = has_counts ? CountWords(count) : 0;
    if (!good || num_features + count + words != sizes[s]) {
      return Status::InvalidArgument(
          "A message of keys has one count for each of " +
          std::to_string(num_features) + " features, and as many ids" +
          (has_counts ? " and counts" : "") +
          " as they count. Received: " + std::to_string(sizes[s]) +
          " numbers from sender " + std::to_string(s) +
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

void KeyMessages::Read(int64_t* ids, int32_t* features, int32_t* num_keys,
                       int32_t* counts) const {
  const int64_t* message = messages;
  for (int64_t s = 0; s < num_senders; ++s) {
    int64_t n = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      features = std::fill_n(features, message[f], static_cast<int32_t>(f));
      n += message[f];
    }
    num_keys[s] = static_cast<int32_t>(n);
    const int64_t* const sent = message + num_features;
    ids = std::copy_n(sent, n, ids);
    if (has_counts) {
      counts =
          std::copy_n(reinterpret_cast<const int32_t*>(sent + n), n, counts);
    }
    message += sizes[s];
  }
}

}  // namespace tfctr
