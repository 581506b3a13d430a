// Which rows leave: for `lru` and `lfu`, those that a model names which knows
// nothing but when and how often each key was used; for `clock`, those that its
// rule promises.

#include "tfctr_ops/cc/store/eviction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::kEvictionPolicies;
using testing::Keys;
using testing::LookupResult;
using testing::Random;
using testing::RoomFor;
using testing::SmallOptions;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using Floats = std::vector<float>;
using Ids = std::vector<int64_t>;

// Rows of one weight and no slots.
StoreOptions OneShard(EvictionPolicy policy, const std::string& ssd = "") {
  StoreOptions options = SmallOptions(1);
  options.eviction_policy = policy;
  options.shard_bits = 0;
  options.ssd.directory = ssd;
  return options;
}

Ids Range(int64_t begin, int64_t end) {
  Ids ids;
  for (int64_t id = begin; id < end; ++id) ids.push_back(id);
  return ids;
}

int64_t Size(const std::set<int64_t>& ids) {
  return static_cast<int64_t>(ids.size());
}

void Train(const TestStore& store, const Ids& ids) {
  store.Train(Keys(ids), Floats(ids.size(), 1), 0.5f);
}

Ids KnownIds(const TestStore& store) {
  Ids ids;
  for (const auto& [key, row] : store.Export()) ids.push_back(key.second);
  return ids;
}

// How many of the keys have a row in memory.
int64_t NumKnown(const TestStore& store, const Ids& ids) {
  const Ids known = KnownIds(store);
  const std::set<int64_t> all(known.begin(), known.end());
  int64_t n = 0;
  for (const int64_t id : ids) n += static_cast<int64_t>(all.count(id));
  return n;
}

// Rows that came into memory so far, inserted or brought up.
int64_t NumCame(const TestStore& store) {
  const StoreStats stats = store.Stats();
  return stats.rows + stats.evicted_rows;
}

class LeastModel {
 public:
  // With a disk, a row that comes back knows its count.
  LeastModel(bool is_lfu, int64_t room, bool has_disk)
      : is_lfu_(is_lfu), room_(room), has_disk_(has_disk) {}

  // Returns how many keys were not in memory.
  int64_t Lookup(const Ids& ids) {
    Ids batch, absent;
    for (const int64_t id : ids) {
      if (std::count(batch.begin(), batch.end(), id) == 0) batch.push_back(id);
    }
    for (const int64_t id : batch) {
      if (in_memory_.count(id) > 0) {
        Use(id);
      } else {
        absent.push_back(id);
      }
    }
    while (!in_memory_.empty() &&
           static_cast<int64_t>(in_memory_.size() + absent.size()) > room_) {
      if (!EvictOneNotOf(batch)) break;
    }
    // From disk they come in order of their ids, and before new ones.
    std::stable_sort(absent.begin(), absent.end(), [&](int64_t a, int64_t b) {
      const bool a_is_new = counts_.count(a) == 0;
      const bool b_is_new = counts_.count(b) == 0;
      if (a_is_new || b_is_new) return !a_is_new && b_is_new;
      return a < b;
    });
    for (const int64_t id : absent) Use(id);
    return static_cast<int64_t>(absent.size());
  }

  void Update(const Ids& ids) {
    for (const int64_t id : std::set<int64_t>(ids.begin(), ids.end())) {
      ++counts_[id];
    }
  }

  Ids InMemory() const {
    Ids ids;
    for (const auto& [id, use] : in_memory_) ids.push_back(id);
    return ids;
  }

 private:
  // (frequency, time): the least one leaves first.
  using LastUse = std::pair<double, int64_t>;

  void Use(int64_t id) {
    const auto it = counts_.find(id);
    const auto count =
        it == counts_.end() ? 0.0 : static_cast<double>(it->second);
    in_memory_[id] = {is_lfu_ ? Rounded(count) : 0.0, ++now_};
  }

  // Down to a multiple of an eighth of the power of two below.
  static double Rounded(double count) {
    if (count < 8) return count;
    const double part = std::exp2(std::floor(std::log2(count)) - 3);
    return std::floor(count / part) * part;
  }

  bool EvictOneNotOf(const Ids& batch) {
    auto least = in_memory_.end();
    for (auto it = in_memory_.begin(); it != in_memory_.end(); ++it) {
      if (std::count(batch.begin(), batch.end(), it->first) > 0) continue;
      if (least == in_memory_.end() || it->second < least->second) least = it;
    }
    if (least == in_memory_.end()) return false;
    if (!has_disk_) counts_.erase(least->first);
    in_memory_.erase(least);
    return true;
  }

  const bool is_lfu_;
  const int64_t room_;
  const bool has_disk_;
  std::map<int64_t, LastUse> in_memory_;
  std::map<int64_t, int64_t> counts_;  // Updates of each key that is known.
  int64_t now_ = 0;
};

// Some ids are far more frequent than others, and some stand there twice.
Ids SomeIds(Random* random) {
  Ids ids;
  const int64_t n = 1 + random->Below(20);
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(random->Below(1 + random->Below(1 + random->Below(300))));
  }
  return ids;
}

TEST(LruAndLfuKeepTheRowsThatTheModelKeeps) {
  for (const bool is_lfu : {false, true}) {
    for (const int64_t room : {20, 50, 120}) {
      const TestStore store(
          OneShard(is_lfu ? EvictionPolicy::kLfu : EvictionPolicy::kLru),
          RoomFor(room));
      LeastModel model(is_lfu, room, /*has_disk=*/false);
      Random random(3);
      int64_t num_missing = 0, num_distinct = 0;
      for (int step = 0; step < 1000; ++step) {
        const Ids ids = SomeIds(&random);
        num_missing += model.Lookup(ids);
        num_distinct += Size(std::set<int64_t>(ids.begin(), ids.end()));
        model.Update(ids);
        Train(store, ids);
        // Reads are no uses.
        store.Read(Keys(SomeIds(&random)));
        CHECK_EQ(KnownIds(store), model.InMemory());
        CHECK_EQ(store.Stats().inserted_rows, num_missing);
        CHECK_EQ(store.Stats().found_rows, num_distinct - num_missing);
      }
    }
  }
}

TEST(OverAnSsdTierLruAndLfuMissTheRowsThatTheModelMisses) {
  for (const bool is_lfu : {false, true}) {
    for (const int64_t room : {5, 20, 60}) {
      const TemporaryDirectory directory;
      const TestStore store(
          OneShard(is_lfu ? EvictionPolicy::kLfu : EvictionPolicy::kLru,
                   directory.path()),
          RoomFor(room));
      LeastModel model(is_lfu, room, /*has_disk=*/true);
      Random random(4);
      int64_t num_missing = 0, num_distinct = 0;
      std::set<int64_t> seen;
      for (int step = 0; step < 1000; ++step) {
        Ids ids = SomeIds(&random);
        // A batch that does not fit leaves later, which the model cannot know.
        if (static_cast<int64_t>(ids.size()) > room) ids.resize(5);
        num_missing += model.Lookup(ids);
        model.Update(ids);
        const StoreStats before = store.Stats();
        Train(store, ids);
        CHECK_EQ(NumCame(store), num_missing);
        num_distinct += Size(std::set<int64_t>(ids.begin(), ids.end()));
        seen.insert(ids.begin(), ids.end());
        const StoreStats stats = store.Stats();
        CHECK_EQ(stats.inserted_rows, Size(seen));
        CHECK_EQ(stats.promoted_rows, num_missing - Size(seen));
        CHECK_EQ(stats.found_rows, num_distinct - num_missing);
        // Rows that wait to be written are not read from disk.
        CHECK_EQ(stats.stalled_lookups - before.stalled_lookups,
                 stats.rows_read > before.rows_read ? 1 : 0);
        CHECK_EQ(stats.stalled_nanoseconds > before.stalled_nanoseconds,
                 stats.rows_read > before.rows_read);
      }
      CHECK_GT(num_missing, 1000);
    }
  }
}

TEST(ImportedRowsAreAsFrequentAsTheyWere) {
  const TestStore store(OneShard(EvictionPolicy::kLfu), RoomFor(10));
  for (int step = 0; step < 4; ++step) Train(store, Range(0, 5));
  Train(store, Range(5, 10));
  const TestStore copy(OneShard(EvictionPolicy::kLfu), RoomFor(10));
  copy.Import(store.Export(), store->step());
  Train(copy, Range(20, 25));
  CHECK_EQ(NumKnown(copy, Range(0, 5)), 5);
  CHECK_EQ(NumKnown(copy, Range(5, 10)), 0);
}

TEST(RowsBroughtUpForLaterStayUntilTheirBatch) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const TemporaryDirectory directory;
    const TestStore store(OneShard(policy, directory.path()), RoomFor(40));
    Train(store, Range(0, 10));
    for (int step = 0; step < 8; ++step) Train(store, Range(100, 140));
    CHECK_OK(store->Prefetch(Keys(Range(0, 10)), store.executor()));
    CHECK_EQ(NumCame(store), 60);
    for (int64_t step = 0; step < 3; ++step) {
      Train(store, Range(1000 + 5 * step, 1005 + 5 * step));
    }
    CHECK_EQ(NumCame(store), 75);
    Train(store, Range(0, 10));
    CHECK_EQ(NumCame(store), 75);
  }
}

TEST(RowsUpdatedOftenOutliveAScan) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const TestStore store(OneShard(policy), RoomFor(100));
    for (int step = 0; step < 10; ++step) Train(store, Range(0, 20));
    // Three times as many rows as there is room for.
    for (int64_t step = 0; step < 30; ++step) {
      Train(store, Range(1000 + 10 * step, 1010 + 10 * step));
    }
    CHECK_EQ(NumKnown(store, Range(0, 20)),
             policy == EvictionPolicy::kLru ? 0 : 20);
  }
}

TEST(RowsThatAreUpdatedOnceLeaveInTheOrderTheyCame) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (const int64_t room : {1, 2, 5, 30}) {
      const TestStore store(OneShard(policy), RoomFor(room));
      for (int64_t id = 0; id < 100; ++id) Train(store, {id});
      CHECK_EQ(KnownIds(store), Range(100 - room, 100));
    }
  }
}

TEST(WhatWasPopularLongAgoLeavesTheClockAndStaysWithLfu) {
  for (const EvictionPolicy policy :
       {EvictionPolicy::kClock, EvictionPolicy::kLfu}) {
    const TestStore store(OneShard(policy), RoomFor(100));
    for (int step = 0; step < 10; ++step) Train(store, Range(0, 20));
    for (int64_t step = 0; step < 400; ++step) {
      Train(store, Range(1000 + 10 * step, 1010 + 10 * step));
    }
    CHECK_EQ(NumKnown(store, Range(0, 20)),
             policy == EvictionPolicy::kLfu ? 20 : 0);
  }
}

// The steps of an import may be far behind those of before.
TEST(TheClockStartsAnewWithAnImport) {
  const TestStore store(OneShard(EvictionPolicy::kClock), RoomFor(100));
  for (int64_t step = 0; step < 4000; ++step) {
    Train(store, Range(1000 + 10 * step, 1010 + 10 * step));
  }
  store.Import(Table(), 0);
  for (int step = 0; step < 10; ++step) Train(store, Range(0, 20));
  for (int64_t step = 0; step < 20; ++step) {
    Train(store, Range(1000 + 10 * step, 1010 + 10 * step));
  }
  CHECK_EQ(NumKnown(store, Range(0, 20)), 20);
}

TEST(ListsCountAsMemory) {
  const auto memory_of = [](EvictionPolicy policy) {
    StoreOptions options = OneShard(policy);
    options.shard_bits = 6;
    const TestStore store(options, RoomFor(200000));
    store.Lookup(Keys(Range(0, 200000)));
    return store.Stats().memory_bytes;
  };
  const int64_t without = memory_of(EvictionPolicy::kClock);
  for (const EvictionPolicy policy :
       {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    const int64_t more = memory_of(policy) - without;
    CHECK_GE(more, 200000 * 8);
    // In each shard, a block for the lists and one that is not full.
    CHECK_LE(more, 200000 * 8 + 64 * 2 * 512 * 8);
  }
}

// The class by itself: what a store never does.

TEST(NothingIsChosenWhereNothingIsOrAllIsHeld) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    Arena arena;
    const RowLayout layout(1, 0);
    RamTier rows(layout, 4096, &arena);
    Eviction eviction(policy, &rows, &arena);
    std::vector<uint32_t> victims;
    eviction.Choose(5, nullptr, 0, &victims);
    CHECK(victims.empty());
    std::vector<uint32_t> held;
    for (uint32_t i = 0; i < 5; ++i) {
      held.push_back(rows.Allocate());
      RowHeader header = {};
      header.live = 1;
      header.mark = i;
      header.score = i % (kMaxScore + 1);
      *rows.Header(held[i]) = header;
      eviction.Add(held[i], /*used=*/i % 2 == 0);
    }
    eviction.Choose(5, held.data(), 5, &victims);
    CHECK(victims.empty());
    eviction.Choose(0, held.data(), 0, &victims);
    CHECK(victims.empty());
    eviction.Choose(9, held.data(), 2, &victims);
    std::sort(victims.begin(), victims.end());
    CHECK_EQ(victims, std::vector<uint32_t>(held.begin() + 2, held.end()));
  }
}

}  // namespace
}  // namespace tfctr
