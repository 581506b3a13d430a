// A store within a budget, some of whose rows leave for good.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::kEvictionPolicies;
using testing::Key;
using testing::Keys;
using testing::LookupResult;
using testing::Random;
using testing::SmallOptions;
using testing::Table;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;

Floats InitialWeights(const StoreOptions& options, const Key& key) {
  Floats weights(static_cast<size_t>(options.dim));
  options.initializer.Fill(
      options.feature_seeds[static_cast<size_t>(key.first)], key.second,
      options.dim, weights.data());
  return weights;
}

// Which rows leave is the store's affair, but a key reads what it learned or
// starts afresh: nothing else, ever.
void RunUnderEviction(EvictionPolicy policy) {
  StoreOptions options = SmallOptions(2);
  options.initializer = {RowInitializer::Kind::kNormal, 0.0f, 0.5f};
  options.default_row.assign(2, 17.0f);
  options.shard_bits = 3;
  options.eviction_policy = policy;
  const int64_t row_bytes = RowLayout(2, 0).row_bytes();
  for (const int64_t room : {0, 5, 30, 100}) {
    const auto budget = std::make_shared<MemoryBudget>(room * row_bytes);
    ThreadExecutor executor(2);
    const TestStore store(options, budget, &executor);
    Random random(11);
    std::map<Key, Floats> learned;
    for (int step = 0; step < 400; ++step) {
      // The second lookup may drive out rows of the first.
      std::vector<std::pair<Keys, LookupResult>> lookups;
      std::map<Key, Floats> looked_up;
      for (int i = 0; i < 2; ++i) {
        Keys keys({}, {0, 2});
        for (int j = 0; j < 20; ++j) keys.ids.push_back(random.Below(60));
        const LookupResult found = store.Lookup(keys);
        for (size_t j = 0; j < keys.ids.size(); ++j) {
          const auto row = found.rows.begin() + static_cast<int64_t>(j) * 2;
          const Floats got(row, row + 2);
          const auto it = learned.find(keys[j]);
          if (it == learned.end() || got != it->second) {
            CHECK_EQ(got, InitialWeights(options, keys[j]));
            learned.erase(keys[j]);
          }
          looked_up[keys[j]] = got;
        }
        CHECK_LE(budget->used_bytes(), std::max<int64_t>(room, 20) * row_bytes);
        lookups.emplace_back(keys, found);
      }
      std::map<Key, Floats> sums;
      for (const auto& [keys, found] : lookups) {
        const Floats gradient = random.Uniforms(40, -1.0f, 1.0f);
        for (size_t j = 0; j < keys.ids.size(); ++j) {
          Floats& sum = sums[keys[j]];
          sum.resize(2, 0.0f);
          for (size_t d = 0; d < 2; ++d) sum[d] += gradient[j * 2 + d];
        }
        store.Update(found.ticket, gradient, 0.5f);
      }
      const Table table = store.Export();
      for (const auto& [key, sum] : sums) {
        const auto moved = [&, gradient = sum](const Floats& from) {
          return Floats{from[0] - 0.5f * gradient[0],
                        from[1] - 0.5f * gradient[1]};
        };
        const Floats& got = table.at(key).floats;
        if (got != moved(looked_up.at(key))) {
          CHECK_EQ(got, moved(InitialWeights(options, key)));
        }
        learned[key] = got;
      }
      for (const auto& [key, row] : table)
        CHECK_EQ(row.floats, learned.at(key));
    }
    if (room < 100) CHECK_GT(store.Stats().evicted_rows, 100);
  }
}

TEST(UnderEvictionAKeyReadsWhatItLearnedOrItsInitialRow) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    RunUnderEviction(policy);
  }
}

}  // namespace
}  // namespace tfctr
