#include "tfctr_ops/cc/store/key_routes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;
using Key = std::pair<int32_t, int64_t>;  // Feature and id.

struct Case {
  std::vector<int64_t> ids;
  std::vector<int32_t> features;
  int64_t num_features;
  int64_t num_owners;
  std::vector<int32_t> counts = {};  // Of each id; empty: once.
  bool sends_counts = false;
  int64_t second_table = 0;  // How many of the features are of another table.

  std::vector<int64_t> tables() const {
    if (second_table == 0) return {num_features};
    return {num_features - second_table, second_table};
  }
  // Within its table.
  uint32_t NumberOf(int32_t feature) const {
    const auto first = static_cast<int32_t>(num_features - second_table);
    return static_cast<uint32_t>(feature < first ? feature : feature - first);
  }
  KeyBatch batch() const {
    return {ids.data(), static_cast<int64_t>(ids.size()), features.data(),
            static_cast<int64_t>(features.size()),
            counts.empty() ? nullptr : counts.data()};
  }
};

struct Routed {
  std::vector<int64_t> messages;
  std::vector<int32_t> sizes;
  std::vector<int32_t> num_keys;
  std::vector<int32_t> places;
};

Routed Route(const Case& c, KeyRoutes* routes, Executor* executor) {
  CHECK_OK(routes->Route(c.batch(), c.tables(), c.num_owners, c.sends_counts,
                         executor));
  Routed routed;
  routed.messages.resize(static_cast<size_t>(routes->message_size()));
  routed.sizes.resize(static_cast<size_t>(c.num_owners));
  routed.num_keys.resize(static_cast<size_t>(c.num_owners));
  routed.places.resize(c.ids.size());
  routes->Write(executor, routed.messages.data(), routed.sizes.data(),
                routed.num_keys.data(), routed.places.data());
  return routed;
}

KeyMessages MessagesOf(const Routed& routed, int64_t num_features,
                       bool has_counts = false) {
  return {routed.messages.data(), static_cast<int64_t>(routed.messages.size()),
          routed.sizes.data(),    static_cast<int64_t>(routed.sizes.size()),
          num_features,           has_counts};
}

// The keys of all messages, how many each has, and how often each counts.
std::vector<Key> Read(const Case& c, const Routed& routed,
                      std::vector<int32_t>* num_keys,
                      std::vector<int32_t>* counts) {
  const KeyMessages messages =
      MessagesOf(routed, c.num_features, c.sends_counts);
  int64_t n = -1;
  CHECK_OK(messages.CountKeys(&n));
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::vector<int32_t> features(static_cast<size_t>(n));
  num_keys->resize(routed.sizes.size());
  counts->resize(c.sends_counts ? ids.size() : 0);
  messages.Read(ids.data(), features.data(), num_keys->data(), counts->data());
  std::vector<Key> keys;
  for (size_t i = 0; i < ids.size(); ++i) {
    keys.emplace_back(features[i], ids[i]);
  }
  return keys;
}

// Against a map, one key after the other.
void CheckRoutes(const Case& c, const Routed& routed) {
  std::map<Key, int32_t> distinct;  // How often each counts.
  for (size_t i = 0; i < c.ids.size(); ++i) {
    const int32_t feature = c.features[i % c.features.size()];
    if (feature < 0) continue;
    distinct[{feature, c.ids[i]}] += c.counts.empty() ? 1 : c.counts[i];
  }
  std::vector<int32_t> num_keys;
  std::vector<int32_t> counts;
  const std::vector<Key> keys = Read(c, routed, &num_keys, &counts);
  CHECK_EQ(num_keys, routed.num_keys);
  CHECK_EQ(keys.size(), distinct.size());
  for (const Key& key : keys) CHECK_EQ(distinct.count(key), 1U);
  CHECK_EQ(std::set<Key>(keys.begin(), keys.end()).size(), keys.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    CHECK_EQ(counts[i], distinct[keys[i]]);
  }
  // Each goes to its owner, and those of an owner come by feature.
  size_t k = 0;
  for (int64_t owner = 0; owner < c.num_owners; ++owner) {
    const auto n = static_cast<size_t>(num_keys[static_cast<size_t>(owner)]);
    for (size_t i = 0; i < n; ++i, ++k) {
      CHECK_EQ(OwnerOf(c.NumberOf(keys[k].first), keys[k].second, c.num_owners),
               static_cast<int32_t>(owner));
      CHECK(i == 0 || keys[k - 1].first <= keys[k].first);
    }
  }
  CHECK_EQ(k, keys.size());
  for (size_t i = 0; i < c.ids.size(); ++i) {
    const int32_t feature = c.features[i % c.features.size()];
    const int32_t place = routed.places[i];
    if (feature < 0) {
      CHECK_EQ(place, -1);
    } else {
      CHECK_EQ(keys[static_cast<size_t>(place)], Key(feature, c.ids[i]));
    }
  }
}

void CheckAllWays(const Case& c) {
  KeyRoutes used;
  std::vector<int64_t> first;
  for (const int num_threads : {1, 2, 4}) {
    ThreadExecutor executor(num_threads);
    KeyRoutes fresh;
    for (KeyRoutes* routes : {&fresh, &used}) {
      const Routed routed = Route(c, routes, &executor);
      CheckRoutes(c, routed);
      // Threads change nothing.
      if (first.empty()) first = routed.messages;
      CHECK_EQ(routed.messages, first);
    }
  }
}

Case RandomCase(int64_t n, std::vector<int32_t> features, int64_t num_features,
                int64_t num_owners) {
  Case c = {{}, std::move(features), num_features, num_owners};
  Random random(static_cast<uint64_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    c.ids.push_back(random.Below(n / 4 + 1) - n / 8);
  }
  return c;
}

TEST(DistinctKeysGoToTheirOwners) {
  for (const int64_t num_owners : {1, 2, 3, 7}) {
    for (int64_t n = 0; n < 40; n += 2) {
      CheckAllWays(RandomCase(n, {0, 1}, 2, num_owners));
    }
    CheckAllWays(RandomCase(30000, {0, 2, 1}, 3, num_owners));
    CheckAllWays(RandomCase(30000, {4, -1, 4, 0, -1}, 5, num_owners));
    CheckAllWays(RandomCase(30, {-1}, 1, num_owners));
    CheckAllWays(RandomCase(0, {}, 1, num_owners));
  }
}

TEST(CountsTravelWithTheirKeys) {
  for (const int64_t num_owners : {1, 2, 7}) {
    for (const int64_t n : {0, 2, 6, 38, 30000}) {
      Case c = RandomCase(n, {0, 1}, 2, num_owners);
      c.sends_counts = true;
      CheckAllWays(c);
      Random random(7);
      for (int64_t i = 0; i < n; ++i) {
        c.counts.push_back(static_cast<int32_t>(random.Below(3)));
      }
      CheckAllWays(c);
    }
  }
}

TEST(KeysOfSeveralTablesGoWhereTheirTableAloneHasThem) {
  for (const int64_t num_owners : {1, 2, 7}) {
    Case c = RandomCase(3000, {0, 2, 1}, 3, num_owners);
    c.second_table = 2;
    CheckAllWays(c);
  }
}

TEST(CountsThatAddUpToTooManyStayAtTheMost) {
  Case c = {{5, 5}, {0}, 1, 1, {INT32_MAX, 1}, true};
  ThreadExecutor executor(1);
  KeyRoutes routes;
  std::vector<int32_t> num_keys, counts;
  Read(c, Route(c, &routes, &executor), &num_keys, &counts);
  CHECK_EQ(counts, std::vector<int32_t>{INT32_MAX});
}

TEST(ManyFeaturesAndOwnersNeedNoMoreThanTheirTable) {
  std::vector<int32_t> features;
  for (int32_t f = 0; f < 3000; ++f) features.push_back(f);
  CheckAllWays(RandomCase(3000, features, 3000, 500));
}

TEST(IdsAtTheEndsOfTheirRangeAreIds) {
  CheckAllWays(
      {{INT64_MIN, INT64_MAX, 0, -1, INT64_MIN, INT64_MAX}, {0, 1}, 2, 3});
}

TEST(OwnersHaveAboutAsManyKeysOfEachShardOfAStore) {
  constexpr int64_t kOwners = 4;
  constexpr int kShardBits = 3;
  std::map<std::pair<int32_t, uint32_t>, int64_t> counts;
  constexpr int64_t kKeys = 64000;
  for (int64_t id = 0; id < kKeys; ++id) {
    const uint64_t hash = HashKey(/*salt=*/12345, 7, id);
    ++counts[{OwnerOf(7, id, kOwners), ShardOf(hash, kShardBits)}];
  }
  CHECK_EQ(counts.size(), size_t{kOwners << kShardBits});
  for (const auto& [place, count] : counts) {
    CHECK(std::abs(count - (kKeys / kOwners >> kShardBits)) < 250);
  }
}

TEST(WhatIsOutOfRangeIsRefused) {
  KeyRoutes routes;
  ThreadExecutor executor(1);
  const std::vector<int64_t> ids = {1};
  const std::vector<int32_t> features = {2};
  const KeyBatch batch = {ids.data(), 1, features.data(), 1};
  CHECK_CONTAINS(routes.Route(batch, {2}, 1, false, &executor).message(),
                 "`features` must lie in [0, 2)");
  CHECK_EQ(
      routes.Route(batch, {3}, 0, false, &executor).message(),
      "`num_features` and `num_owners` must be positive, and their "
      "product below 2^31. Received: num_features=3 in all, num_owners=0.");
  CHECK_CONTAINS(
      routes.Route(batch, {1 << 20}, 1 << 20, false, &executor).message(),
      "num_owners=1048576");
}

TEST(MessagesThatDoNotCountTheirIdsAreRefused) {
  // Two features: counts 1 and 2, then three ids.
  const Routed good = {{1, 2, 7, 8, 9}, {5}, {}, {}};
  int64_t n = 0;
  CHECK_OK(MessagesOf(good, 2).CountKeys(&n));
  CHECK_EQ(n, 3);
  const Routed bad[] = {
      {{1, 3, 7, 8, 9}, {5}, {}, {}},
      {{1, -2, 7, 8, 9}, {5}, {}, {}},
      {{1, 2, 7, 8, 9}, {6}, {}, {}},
      {{1}, {1}, {}, {}},
      {{INT64_MAX, INT64_MAX, 7, 8}, {4}, {}, {}},
  };
  for (const Routed& routed : bad) {
    CHECK_CONTAINS(MessagesOf(routed, 2).CountKeys(&n).message(),
                   "numbers from sender 0 that do not count so. All ranks must "
                   "build the same tables.");
  }
  // Three counts take two numbers more.
  CHECK_CONTAINS(MessagesOf(good, 2, true).CountKeys(&n).message(),
                 "as many ids and counts as they count");
  const Routed cut = {{1, 2, 7, 8, 9, 9}, {5}, {}, {}};
  CHECK_EQ(MessagesOf(cut, 2).CountKeys(&n).message(),
           "`sizes` must be those of all messages: 6 in all. Received: 5.");
}

}  // namespace
}  // namespace tfctr
