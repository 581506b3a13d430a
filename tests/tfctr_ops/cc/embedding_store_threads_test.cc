// Many threads at one store. ThreadSanitizer watches; what must hold whatever
// the order of events is checked along the way and at the end.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
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
using testing::NoLimit;
using testing::Random;
using testing::SmallOptions;
using testing::Table;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;

constexpr int64_t kDim = 4;

void RunTogether(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

// Rows start as zeros, and gradients of one key are the same in every column:
// so are its weights, unless a reader saw half an update.
StoreOptions EvenRows(Kind kind) {
  StoreOptions options = SmallOptions(kDim, kind);
  options.initializer = {RowInitializer::Kind::kConstant, 0.0f, 0.0f};
  options.shard_bits = 3;
  return options;
}

void CheckEven(const float* row) {
  for (int64_t c = 1; c < kDim; ++c) CHECK_EQ(row[c], row[0]);
}

void CheckAllEven(const Floats& rows) {
  for (size_t i = 0; i < rows.size(); i += kDim) CheckEven(&rows[i]);
}

void CheckAllEven(const Table& table) {
  for (const auto& [key, row] : table) {
    for (size_t i = 0; i < row.floats.size(); i += kDim) {
      CheckEven(&row.floats[i]);
    }
  }
}

// One batch in ten is large enough for several threads.
Keys SomeKeys(Random* random) {
  Keys keys({}, {0, 1});
  const int64_t n = random->Below(10) == 0 ? 2400 : 60;
  for (int64_t i = 0; i < n; ++i) keys.ids.push_back(random->Below(500));
  return keys;
}

Floats EvenGradient(const Keys& keys, Random* random) {
  Floats gradient;
  for (size_t i = 0; i < keys.ids.size(); ++i) {
    // Small integers, whose sums are exact in any order.
    gradient.insert(gradient.end(), kDim,
                    static_cast<float>(1 + random->Below(3)));
  }
  return gradient;
}

TEST(ConcurrentTrainersLoseNoGradient) {
  constexpr size_t kNumTrainers = 3;
  constexpr int64_t kNumSteps = 150;
  ThreadExecutor executor(3);
  const TestStore store(EvenRows(Kind::kSgd), NoLimit(), &executor);
  std::vector<std::map<Key, int64_t>> sums(kNumTrainers);
  std::atomic<size_t> num_training{kNumTrainers};

  const auto train = [&](size_t trainer) {
    Random random(trainer);
    for (int64_t step = 0; step < kNumSteps; ++step) {
      std::vector<std::pair<Keys, LookupResult>> lookups;
      for (int64_t i = random.Below(3); i >= 0; --i) {
        const Keys keys = SomeKeys(&random);
        lookups.emplace_back(keys, store.Lookup(keys));
        CheckAllEven(lookups.back().second.rows);
      }
      store.Lookup(SomeKeys(&random));  // Whose ticket is dropped.
      for (const auto& [keys, found] : lookups) {
        const Floats gradient = EvenGradient(keys, &random);
        for (size_t i = 0; i < keys.ids.size(); ++i) {
          sums[trainer][keys[i]] += static_cast<int64_t>(gradient[i * kDim]);
        }
        store.Update(found.ticket, gradient, 1.0f);
      }
    }
    --num_training;
  };
  const auto read = [&](uint64_t seed) {
    Random random(seed);
    std::map<Key, float> seen;
    while (num_training > 0) {
      const Keys keys = SomeKeys(&random);
      const Floats rows = store.Read(keys);
      CheckAllEven(rows);
      for (size_t i = 0; i < keys.ids.size(); ++i) {
        // Weights only ever fall.
        const float weight = rows[i * kDim];
        CHECK_LE(weight, seen[keys[i]]);
        seen[keys[i]] = weight;
      }
    }
  };
  const auto copy = [&] {
    int64_t last_step = 0;
    while (num_training > 0) {
      const Table table = store.Export();
      CheckAllEven(table);
      const StoreStats stats = store.Stats();
      CHECK_GE(stats.step, last_step);
      CHECK_GE(stats.known_rows, static_cast<int64_t>(table.size()));
      for (const auto& [key, row] : table) CHECK_LE(row.last_step, stats.step);
      last_step = stats.step;
    }
  };
  RunTogether({[&] { train(0); }, [&] { train(1); }, [&] { train(2); },
               [&] { read(10); }, [&] { read(11); }, copy});

  std::map<Key, int64_t> expected;
  for (const auto& sum : sums) {
    for (const auto& [key, value] : sum) expected[key] += value;
  }
  const Table table = store.Export();
  CHECK_EQ(table.size(), expected.size());
  for (const auto& [key, row] : table) {
    CHECK_EQ(row.floats, Floats(kDim, static_cast<float>(-expected.at(key))));
    CHECK_LE(row.count, store->step());
  }
  CHECK_EQ(store.Stats().known_rows, static_cast<int64_t>(table.size()));
}

// Everything at once. Rows come and go, so only their evenness is known.
void RunEverything(const TestStore& store, uint64_t seed) {
  constexpr int kNumRounds = 150;
  const auto train = [&](uint64_t thread) {
    Random random(seed + thread);
    for (int i = 0; i < 2 * kNumRounds; ++i) {
      const Keys keys = SomeKeys(&random);
      const LookupResult found = store.Lookup(keys);
      CheckAllEven(found.rows);
      store.Update(found.ticket, EvenGradient(keys, &random), 0.01f);
    }
  };
  const auto read = [&] {
    Random random(seed + 10);
    for (int i = 0; i < 2 * kNumRounds; ++i) {
      CheckAllEven(store.Read(SomeKeys(&random)));
      store.Stats();
    }
  };
  const auto write = [&] {
    Random random(seed + 11);
    for (int i = 0; i < kNumRounds; ++i) {
      const Keys keys = SomeKeys(&random);
      store.Write(keys, EvenGradient(keys, &random));
    }
  };
  const auto remove = [&] {
    Random random(seed + 12);
    for (int i = 0; i < 2 * kNumRounds; ++i) store.Remove(SomeKeys(&random));
  };
  const auto copy = [&] {
    for (int i = 0; i < kNumRounds; ++i) {
      const Table table = store.Export();
      CheckAllEven(table);
      if (i % 10 == 9) store.Import(table, store->step());
    }
  };
  RunTogether(
      {[&] { train(1); }, [&] { train(2); }, read, write, remove, copy});
}

TEST(EveryCallMayMeetEveryOther) {
  for (const Kind kind : {Kind::kAdagrad, Kind::kAdam}) {
    ThreadExecutor executor(3);
    const auto budget = NoLimit();
    const TestStore store(EvenRows(kind), budget, &executor);
    RunEverything(store, 1);
    const StoreStats stats = store.Stats();
    CHECK_EQ(budget->used_bytes(), stats.rows * stats.row_bytes);
    CHECK_EQ(stats.known_rows, static_cast<int64_t>(store.Export().size()));
  }
}

void RunEverythingUnderEviction(EvictionPolicy policy) {
  StoreOptions options = EvenRows(Kind::kAdagrad);
  options.eviction_policy = policy;
  const int64_t row_bytes = RowLayout(kDim, kDim).row_bytes();
  const auto budget = std::make_shared<MemoryBudget>(300 * row_bytes);
  ThreadExecutor executor(2);
  const TestStore store(options, budget, &executor);
  RunEverything(store, 2);
  const StoreStats stats = store.Stats();
  CHECK_EQ(budget->used_bytes(), stats.rows * row_bytes);
  CHECK_EQ(stats.known_rows, static_cast<int64_t>(store.Export().size()));
  store.Lookup({{1}});
  CHECK_LE(budget->used_bytes(), budget->limit_bytes());
}

TEST(EveryCallMayMeetEveryOtherUnderEviction) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    RunEverythingUnderEviction(policy);
  }
}

TEST(StoresThatShareABudgetMayRunTogether) {
  StoreOptions options = EvenRows(Kind::kSgd);
  options.eviction_policy = EvictionPolicy::kClock;
  const int64_t row_bytes = RowLayout(kDim, 0).row_bytes();
  const auto budget = std::make_shared<MemoryBudget>(500 * row_bytes);
  {
    ThreadExecutor executor(2);
    const TestStore a(options, budget, &executor);
    const TestStore b(options, budget, &executor);
    const auto train = [](const TestStore& store, uint64_t seed) {
      Random random(seed);
      for (int i = 0; i < 150; ++i) {
        const Keys keys = SomeKeys(&random);
        store.Update(store.Lookup(keys).ticket, EvenGradient(keys, &random),
                     0.01f);
      }
    };
    RunTogether({[&] { train(a, 1); }, [&] { train(b, 2); },
                 [&] { train(a, 3); }, [&] { train(b, 4); }});
    CHECK_EQ(budget->used_bytes(),
             (a.Stats().rows + b.Stats().rows) * row_bytes);
    a.Lookup({{1}});
    b.Lookup({{1}});
    CHECK_LE(budget->used_bytes(), budget->limit_bytes());
  }
  CHECK_EQ(budget->used_bytes(), 0);
}

TEST(OneOfManyThreadsThatAskATicketIsAnswered) {
  const TestStore store(EvenRows(Kind::kSgd));
  for (int64_t id = 0; id < 50; ++id) {
    const LookupResult found = store.Lookup({{id}});
    std::atomic<int> num_answered{0};
    const auto ask = [&] {
      int64_t step = -1;
      const Status status =
          store.TryUpdate(found.ticket, Floats(kDim, 1), 1.0f, &step);
      if (status.ok()) ++num_answered;
      CHECK(status.ok() || status.code() == StatusCode::kFailedPrecondition);
    };
    RunTogether({ask, ask, ask, ask});
    CHECK_EQ(num_answered.load(), 1);
    CHECK_EQ(store.Read({{id}}), Floats(kDim, -1));
  }
}

TEST(TicketsMayBeDroppedOnAnyThread) {
  std::vector<std::shared_ptr<Ticket>> tickets;
  {
    const TestStore store(EvenRows(Kind::kSgd));
    for (int64_t id = 0; id < 400; ++id) {
      tickets.push_back(store.Lookup({{id}}).ticket);
    }
  }
  // The last ticket takes the store with it.
  const auto drop = [&](size_t first) {
    for (size_t i = first; i < tickets.size(); i += 4) tickets[i].reset();
  };
  RunTogether(
      {[&] { drop(0); }, [&] { drop(1); }, [&] { drop(2); }, [&] { drop(3); }});
}

}  // namespace
}  // namespace tfctr
