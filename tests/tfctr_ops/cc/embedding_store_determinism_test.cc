// Results do not depend on the number of threads or shards, on the order in
// which tasks run, or on the order in which keys were first seen: to the bit.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::BitsOf;
using testing::Keys;
using testing::LookupResult;
using testing::NoLimit;
using testing::Random;
using testing::SmallOptions;
using testing::Table;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;

constexpr int64_t kDim = 5;
// Large enough for several threads to share.
constexpr int64_t kBatch = 9000;

// Runs the last task first, on the calling thread, as if it had more.
class BackwardExecutor final : public Executor {
 public:
  int parallelism() const override { return 3; }
  void ParallelFor(int64_t num_tasks,
                   const std::function<void(int64_t)>& task) override {
    for (int64_t i = num_tasks - 1; i >= 0; --i) task(i);
  }
};

StoreOptions Options(Kind kind, int shard_bits) {
  StoreOptions options = SmallOptions(kDim, kind);
  options.initializer = {RowInitializer::Kind::kUniform, -0.5f, 1.0f};
  options.shard_bits = shard_bits;
  return options;
}

// Keys of three features, a few of them often, most of them rarely.
Keys SkewedKeys(Random* random) {
  Keys keys({}, {0, 1, 2});
  for (int64_t i = 0; i < kBatch; ++i) {
    keys.ids.push_back(random->Below(1 + random->Below(4000)));
  }
  return keys;
}

struct Results {
  std::vector<std::vector<uint32_t>> rows;  // Of every lookup and read.
  Table table;

  bool operator==(const Results& other) const {
    return rows == other.rows && table == other.table;
  }
};

// A few steps with all that a store does.
Results Train(const TestStore& store) {
  Random random(1);
  Results results;
  for (int64_t step = 1; step <= 3; ++step) {
    const LookupResult a = store.Lookup(SkewedKeys(&random));
    const LookupResult b = store.Lookup(SkewedKeys(&random));
    const Floats for_a = random.Uniforms(kBatch * kDim, -1.0f, 1.0f);
    const Floats for_b = random.Uniforms(kBatch * kDim, -1.0f, 1.0f);
    if (step == 2) store.Remove(SkewedKeys(&random));
    store.Update(b.ticket, for_b, 0.05f);
    store.Update(a.ticket, for_a, 0.05f);
    if (step == 2) {
      store.Write(SkewedKeys(&random),
                  random.Uniforms(kBatch * kDim, -1.0f, 1.0f));
    }
    for (const Floats& rows :
         {a.rows, b.rows, store.Read(SkewedKeys(&random))}) {
      results.rows.push_back(BitsOf(rows));
    }
  }
  results.table = store.Export();
  CHECK_GT(results.table.size(), size_t{1000});
  return results;
}

TEST(ResultsDoNotDependOnThreadsOrShards) {
  const Results expected = Train(TestStore(Options(Kind::kAdam, 6)));
  for (const int shard_bits : {0, 3, 6}) {
    const StoreOptions options = Options(Kind::kAdam, shard_bits);
    for (const int num_threads : {1, 2, 4}) {
      ThreadExecutor executor(num_threads);
      CHECK(Train(TestStore(options, NoLimit(), &executor)) == expected);
    }
    BackwardExecutor backward;
    CHECK(Train(TestStore(options, NoLimit(), &backward)) == expected);
  }
}

TEST(NoOptimizerDependsOnThreadsOrShards) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kRowwiseAdagrad,
                          Kind::kAdam, Kind::kFtrl}) {
    for (const float clip_ratio : {-1.0f, 0.5f}) {
      ThreadExecutor executor(4);
      StoreOptions options = Options(kind, 6);
      options.optimizer.clip_ratio = clip_ratio;
      const TestStore shared(options, NoLimit(), &executor);
      options.shard_bits = 0;
      const TestStore alone(options);
      CHECK(Train(shared) == Train(alone));
      CHECK_EQ(shared.Stats().updated_rows, alone.Stats().updated_rows);
      CHECK_EQ(shared.Stats().clipped_rows, alone.Stats().clipped_rows);
      CHECK_EQ(shared.Stats().clipped_rows > 0, clip_ratio > 0);
    }
  }
}

TEST(ResultsDoNotDependOnABudgetThatIsNotReached) {
  for (const EvictionPolicy policy :
       {EvictionPolicy::kNone, EvictionPolicy::kClock}) {
    StoreOptions options = Options(Kind::kAdagrad, 3);
    const Results expected = Train(TestStore(options));
    options.eviction_policy = policy;
    for (const int num_threads : {1, 3}) {
      ThreadExecutor executor(num_threads);
      const auto budget = std::make_shared<MemoryBudget>(int64_t{1} << 30);
      CHECK(Train(TestStore(options, budget, &executor)) == expected);
    }
  }
}

TEST(ResultsDoNotDependOnTheOrderInWhichKeysWereFirstSeen) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 4000; ++id) ids.push_back(id);
  const StoreOptions options = Options(Kind::kAdagrad, 3);
  const Results expected = Train(TestStore(options));
  for (const uint64_t seed : {1, 2}) {
    const TestStore store(options);
    Random random(seed);
    random.Shuffle(&ids);
    for (const int32_t feature : {2, 0, 1}) store.Lookup({ids, {feature}});
    CHECK(Train(store) == expected);
  }
}

TEST(ResultsDoNotDependOnRowsOfOtherKeysComingAndGoing) {
  const Results expected = Train(TestStore(Options(Kind::kAdam, 3)));
  const TestStore store(Options(Kind::kAdam, 3));
  std::vector<int64_t> others;
  for (int64_t id = 0; id < 20000; ++id) others.push_back(-1 - id);
  store.Lookup(others);
  others.resize(15000);
  store.Remove(others);
  CHECK(Train(store) == expected);
}

TEST(WhoIsEvictedDoesNotDependOnThreads) {
  StoreOptions options = Options(Kind::kAdagrad, 3);
  options.eviction_policy = EvictionPolicy::kClock;
  const auto train = [&](Executor* executor) {
    // Room for a third of the keys.
    const int64_t row_bytes = RowLayout(kDim, kDim).row_bytes();
    const TestStore store(
        options, std::make_shared<MemoryBudget>(3000 * row_bytes), executor);
    const Results results = Train(store);
    CHECK_GT(store.Stats().evicted_rows, 1000);
    return results;
  };
  SerialExecutor serial;
  const Results expected = train(&serial);
  for (const int num_threads : {2, 4}) {
    ThreadExecutor executor(num_threads);
    CHECK(train(&executor) == expected);
  }
  BackwardExecutor backward;
  CHECK(train(&backward) == expected);
}

}  // namespace
}  // namespace tfctr
