#include "tfctr_ops/cc/store/distinct_keys.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/lock_order.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;
using Key = std::pair<int32_t, int64_t>;  // Feature and id.

struct Found {
  std::vector<int64_t> ids, words;
  std::vector<int32_t> features, counts, places;
};

Found Find(const KeyBatch& batch, int64_t num_features, bool has_counts,
           Executor* executor) {
  DistinctKeys keys;
  CHECK_OK(keys.Find(batch, num_features, has_counts, executor));
  Found found;
  const auto n = static_cast<size_t>(keys.size());
  found.ids.resize(n);
  found.words.resize(n);
  found.features.resize(n);
  found.counts.resize(has_counts ? n : 0);
  found.places.resize(static_cast<size_t>(batch.n));
  keys.Write(executor, found.ids.data(), found.features.data(),
             found.words.data(), found.counts.data(), found.places.data());
  return found;
}

TEST(FindsEachKeyOnceInTheOrderOfTheLocksAndAddsItsCounts) {
  Random random(1);
  ThreadExecutor executor(4);
  for (const int64_t n : {0, 3, 300, 30000}) {
    const std::vector<int32_t> features = {0, -1, 2};
    std::vector<int64_t> ids;
    std::vector<int32_t> counts;
    for (int64_t i = 0; i < n; ++i) {
      ids.push_back(random.Below(n / 3 + 1) << 50);  // Some are negative.
      counts.push_back(static_cast<int32_t>(random.Below(3)));
    }
    const KeyBatch batch = {ids.data(), n, features.data(), 3, counts.data()};
    const Found found = Find(batch, 3, true, &executor);
    std::map<Key, int32_t> expected;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Key key = {features[i % 3], ids[i]};
      const int32_t place = found.places[i];
      if (key.first < 0) {
        CHECK_EQ(place, -1);
        continue;
      }
      expected[key] += counts[i];
      CHECK_EQ(found.features[static_cast<size_t>(place)], key.first);
      CHECK_EQ(found.ids[static_cast<size_t>(place)], key.second);
    }
    CHECK_EQ(found.ids.size(), expected.size());
    for (size_t d = 0; d < found.ids.size(); ++d) {
      const Key key = {found.features[d], found.ids[d]};
      CHECK_EQ(found.counts[d], expected.at(key));
      CHECK_EQ(found.words[d], WordOf(key.second, key.first));
      if (d > 0) CHECK(LocksOf(found.words[d - 1]) <= LocksOf(found.words[d]));
    }
    // The order does not depend on the threads, nor on being asked for counts.
    SerialExecutor serial;
    const Found again = Find(batch, 3, false, &serial);
    CHECK_EQ(again.words, found.words);
    CHECK_EQ(again.places, found.places);
  }
}

TEST(WordsOfOneFeatureAreDistinctAsItsIdsAre) {
  // Xor with one pattern, which another feature does not share.
  CHECK_EQ(WordOf(WordOf(12345, 7), 7), 12345);
  CHECK(WordOf(12345, 7) != WordOf(12345, 8));
  CHECK_EQ(WordOf(0, 0), static_cast<int64_t>(0x9e3779b97f4a7c15ULL));
}

TEST(EqualLocksStayAsTheyCame) {
  std::vector<int32_t> locks = {5, 0, 8191, 5, 0};
  LocksToPlaces(5, locks.data());
  CHECK_EQ(locks, (std::vector<int32_t>{2, 0, 4, 3, 1}));
}

TEST(AFeatureThatIsNoneIsRefused) {
  SerialExecutor executor;
  const int64_t id = 7;
  const int32_t feature = 2;
  DistinctKeys keys;
  CHECK(!keys.Find({&id, 1, &feature, 1}, 2, false, &executor).ok());
}

}  // namespace
}  // namespace tfctr
