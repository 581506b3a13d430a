// Byte budgets: full stores, eviction, and stores that share a budget.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::kEvictionPolicies;
using testing::Keys;
using testing::LookupResult;
using testing::Random;
using testing::Range;
using testing::RoomFor;
using testing::SmallOptions;
using testing::Table;
using testing::TestStore;
using Floats = std::vector<float>;

// Rows of two weights and no slots.
constexpr int64_t kRowBytes = 24 + 2 * 4;

TEST(ARowHasTheBytesThatTheTestsBelowTakeItToHave) {
  CHECK_EQ(TestStore(SmallOptions(2)).Stats().row_bytes, kRowBytes);
}

StoreOptions Evicting(int shard_bits,
                      EvictionPolicy policy = EvictionPolicy::kClock) {
  StoreOptions options = SmallOptions(2);
  options.eviction_policy = policy;
  options.shard_bits = shard_bits;
  return options;
}

// Lets every key of [begin, end) learn something.
void Train(const TestStore& store, int64_t begin, int64_t end) {
  store.Train(Range(begin, end),
              Floats(static_cast<size_t>(end - begin) * 2, 1), 0.5f);
}

int64_t NumKnownIn(const TestStore& store, int64_t begin, int64_t end) {
  int64_t num_known = 0;
  for (const auto& [key, row] : store.Export()) {
    num_known += begin <= key.second && key.second < end;
  }
  return num_known;
}

TEST(AFullStoreInsertsNothingAndNamesTheRemedies) {
  const auto budget = RoomFor(5, 2);
  const TestStore store(SmallOptions(2), budget);
  Train(store, 0, 3);
  const Table before = store.Export();
  const Keys batch(
      {0, 10, 11, 10, 12, 13, 11});  // Four new keys, room for two.
  for (const Status& status :
       {store.TryLookup(batch),
        store->Write(batch, Floats(14, 1).data(), store.executor())}) {
    CHECK_EQ(status.code(), StatusCode::kResourceExhausted);
    CHECK_EQ(
        status.message(),
        "Table 'ads' is full: the budget of ram=160 bytes is used up by "
        "rows of 32 bytes, and this batch has 2 new keys more than fit. "
        "Nothing was inserted. Possible fixes: 1) raise `ram` to 224 bytes "
        "or more; 2) let rows leave with eviction_policy='clock'; 3) lower "
        "`dim` or choose an optimizer with fewer slots.");
    CHECK_EQ(store.Export(), before);
    CHECK_EQ(store.Stats().rows, 3);
    CHECK_EQ(budget->used_bytes(), 3 * kRowBytes);
  }
}

TEST(ABudgetRaisedAsTheMessageSaysSuffices) {
  for (const int64_t num_before : {0, 1, 3, 5}) {
    for (const int64_t num_new : {3, 6, 20}) {
      const TestStore full(SmallOptions(2), RoomFor(5, 2));
      full.Lookup(Range(0, num_before));
      const Keys batch = Range(100, 100 + num_new);
      const Status status = full.TryLookup(batch);
      if (num_before + num_new <= 5) {
        CHECK_OK(status);
        continue;
      }
      const std::string enough = "raise `ram` to ";
      const size_t at = status.message().find(enough);
      CHECK_NE(at, std::string::npos);
      const int64_t bytes =
          std::stoll(status.message().substr(at + enough.size()));
      for (const int64_t less : {0, 1}) {
        const TestStore raised(SmallOptions(2),
                               std::make_shared<MemoryBudget>(bytes - less));
        raised.Lookup(Range(0, num_before));
        CHECK_EQ(raised.TryLookup(batch).ok(), less == 0);
      }
    }
  }
}

TEST(AFullStoreStillTrainsTheKeysItHas) {
  const TestStore store(SmallOptions(2), RoomFor(3, 2));
  Train(store, 0, 3);
  CHECK(!store.TryLookup({{3}}).ok());
  Train(store, 0, 3);
  CHECK_EQ(store.Read(Range(0, 4)), (Floats{0, 0, 0, 0, 0, 0, 0, 0}));
  store.Write({{1}}, {5, 6});
  CHECK_EQ(store.Read({{1}}), (Floats{5, 6}));
}

TEST(RemovedRowsMakeRoom) {
  const auto budget = RoomFor(3, 2);
  const TestStore store(SmallOptions(2), budget);
  store.Lookup(Range(0, 3));
  CHECK_EQ(store.Remove({{0, 1}}), 0);  // None of them was ever trained.
  CHECK_EQ(budget->used_bytes(), kRowBytes);
  store.Lookup(Range(10, 12));
  CHECK_EQ(budget->used_bytes(), 3 * kRowBytes);
  CHECK(!store.TryLookup({{12}}).ok());
}

TEST(AnImportTakesTheRoomOfTheRowsItReplaces) {
  const auto budget = RoomFor(4, 2);
  const TestStore store(SmallOptions(2), budget);
  Train(store, 0, 4);
  const Table table = store.Export();
  store.Import(table, 1);
  CHECK_EQ(store.Export(), table);
  CHECK_EQ(budget->used_bytes(), 4 * kRowBytes);
  store.Import({}, 0);
  CHECK_EQ(budget->used_bytes(), 0);
}

TEST(AnImportThatDoesNotFitChangesNothing) {
  const TestStore source(SmallOptions(2));
  Train(source, 10, 16);
  const auto budget = RoomFor(7, 2);
  const TestStore store(SmallOptions(2), budget);
  const TestStore neighbour(SmallOptions(2), budget);
  neighbour.Lookup(Range(0, 2));
  Train(store, 0, 3);
  const Table before = store.Export();
  const Status status = store.TryImport(source.Export(), 9);
  CHECK_EQ(status.code(), StatusCode::kResourceExhausted);
  CHECK_EQ(status.message(),
           "Table 'ads' cannot take 6 rows of 32 bytes: the budget is ram=224 "
           "bytes. The table is as it was. Raise `ram` to 256 bytes or more.");
  CHECK_EQ(store.Export(), before);
  CHECK_EQ(store->step(), 1);
  CHECK_EQ(budget->used_bytes(), 5 * kRowBytes);
  neighbour.Remove({{0}});
  store.Import(source.Export(), 9);
  CHECK_EQ(store.Export(), source.Export());
}

TEST(ABudgetOfAnyNumberOfBytesHoldsWholeRows) {
  const TestStore store(SmallOptions(2),
                        std::make_shared<MemoryBudget>(3 * kRowBytes - 1));
  store.Lookup(Range(0, 2));
  CHECK(!store.TryLookup({{2}}).ok());
  const TestStore none(SmallOptions(2), std::make_shared<MemoryBudget>(0));
  CHECK(!none.TryLookup({{2}}).ok());
  CHECK_EQ(none.Read({{2}}), (Floats{0, 0}));
}

TEST(RowsLeaveWhenTheBudgetIsUsedUp) {
  for (const int shard_bits : {0, 3, 6}) {
    const auto budget = RoomFor(400, 2);
    const TestStore store(Evicting(shard_bits), budget);
    Random random(1);
    for (int step = 0; step < 300; ++step) {
      Keys keys({});
      for (int i = 0; i < 40; ++i) keys.ids.push_back(random.Below(3000));
      store.Train(keys, Floats(80, 1), 0.5f);
      CHECK_LE(budget->used_bytes(), budget->limit_bytes());
      CHECK_EQ(store.Stats().rows * kRowBytes, budget->used_bytes());
    }
    CHECK_EQ(store.Stats().rows, 400);
    CHECK_GT(store.Stats().evicted_rows, 1000);
  }
}

TEST(TheBudgetHoldsForKeysOfOneShardToo) {
  for (const int shard_bits : {1, 3, 6}) {
    const auto budget = RoomFor(64, 2);
    const TestStore store(Evicting(shard_bits), budget);
    const uint64_t salt = store->options().salt;
    // Ids by the shard they fall into.
    std::vector<Keys> of_shard(size_t{1} << shard_bits, Keys({}));
    for (int64_t id = 0; id < 100000; ++id) {
      of_shard[ShardOf(HashKey(salt, 0, id), shard_bits)].ids.push_back(id);
    }
    for (int round = 0; round < 2; ++round) {
      for (Keys keys : of_shard) {
        keys.ids.resize(64);
        store.Lookup(keys);
        CHECK_LE(budget->used_bytes(), budget->limit_bytes());
      }
    }
    CHECK_EQ(store.Stats().rows, 64);
  }
}

TEST(ABatchThatFitsKeepsTheBudgetWithFewRowsAShard) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const auto budget = RoomFor(100, 2);
    const TestStore store(Evicting(6, policy), budget);
    for (int64_t step = 0; step < 200; ++step) {
      store.Lookup(Range(step * 50, step * 50 + 50));
      CHECK_LE(budget->used_bytes(), budget->limit_bytes());
    }
  }
}

TEST(RowsOfTheBatchNeverLeave) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (const int shard_bits : {0, 3}) {
      const TestStore store(Evicting(shard_bits, policy), RoomFor(20, 2));
      for (int64_t step = 0; step < 50; ++step) {
        // Ten keys that learned in the step before, and ten new ones.
        const Keys keys = Range(step * 10, step * 10 + 20);
        const LookupResult found = store.Lookup(keys);
        Floats expected(40, 1);
        if (step > 0) std::fill_n(expected.begin(), 20, 0.5f);
        CHECK_EQ(found.rows, expected);
        store.Update(found.ticket, Floats(40, 1), 0.5f);
        CHECK_EQ(NumKnownIn(store, step * 10, step * 10 + 20), 20);
        // By which the next step tells them from new ones.
        store.Write(Range(step * 10, step * 10 + 20), Floats(40, 0.5f));
      }
    }
  }
}

TEST(ARowThatLeftStartsAfresh) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const TestStore store(Evicting(0, policy), RoomFor(4, 2));
    Train(store, 0, 4);
    CHECK_EQ(store.Read({{0}}), (Floats{0.5f, 0.5f}));
    Train(store, 4, 8);
    CHECK_EQ(store.Stats().evicted_rows, 4);
    CHECK_EQ(store.Read({{0}}), (Floats{0, 0}));
    CHECK_EQ(store.Lookup({{0}}).rows, (Floats{1, 1}));
  }
}

TEST(RowsUsedOftenOutliveRowsUsedOnce) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (const int shard_bits : {0, 2}) {
      const TestStore store(Evicting(shard_bits, policy), RoomFor(200, 2));
      Train(store, 0, 200);
      for (int i = 0; i < 3; ++i) store.Lookup(Range(0, 100));
      Train(store, 1000, 1060);
      CHECK_EQ(NumKnownIn(store, 0, 100), 100);
      CHECK_EQ(NumKnownIn(store, 100, 200), 40);
      CHECK_EQ(NumKnownIn(store, 1000, 1060), 60);
    }
  }
}

TEST(AScanDoesNotDriveOutRowsInUse) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const TestStore store(Evicting(0, policy), RoomFor(100, 2));
    Train(store, 0, 50);
    for (int64_t step = 0; step < 100; ++step) {
      store.Lookup(Range(0, 50));
      store.Lookup(Range(1000 + step * 20, 1020 + step * 20));
    }
    CHECK_EQ(NumKnownIn(store, 0, 50), 50);
  }
}

TEST(ReadsDoNotKeepRowsIn) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const TestStore store(Evicting(0, policy), RoomFor(4, 2));
    Train(store, 0, 4);
    store.Lookup({{2, 3}});
    for (int i = 0; i < 5; ++i) store.Read({{0, 1}});
    Train(store, 10, 12);
    CHECK_EQ(NumKnownIn(store, 0, 2), 0);
    CHECK_EQ(NumKnownIn(store, 2, 4), 2);
  }
}

TEST(AnEvictedRowTakesTheGradientThatComesLate) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const auto budget = RoomFor(4, 2);
    const TestStore store(Evicting(0, policy), budget);
    store.Write(Range(0, 4), Floats(8, 5));
    const LookupResult a = store.Lookup(Range(0, 2));
    for (int64_t step = 1; step < 20; ++step) {
      store.Lookup(Range(step * 10, step * 10 + 4));
    }
    CHECK_EQ(NumKnownIn(store, 0, 2), 0);
    store.Update(a.ticket, {1, 2, 3, 4}, 0.5f);
    CHECK_EQ(store.Read({{0, 1}}), (Floats{0.5f, 0, -0.5f, -1}));
    store.Lookup(Range(0, 2));
    CHECK_LE(budget->used_bytes(), budget->limit_bytes());
  }
}

TEST(ABudgetBelowOneBatchWorksAndIsRepaid) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (const int shard_bits : {0, 3, 6}) {
      for (const int64_t room : {0, 1, 10}) {
        const auto budget = RoomFor(room);
        const TestStore store(Evicting(shard_bits, policy), budget);
        for (int step = 1; step <= 3; ++step) {
          // All in one batch, so none leaves.
          Train(store, 0, 200);
          CHECK_EQ(store.Read({{0, 199}}),
                   Floats(4, 1 - 0.5f * static_cast<float>(step)));
          CHECK_EQ(budget->used_bytes(), 200 * kRowBytes);
        }
        const Keys small = Range(1000, 1000 + room / 2);
        for (int i = 0; i < 20; ++i) store.Lookup(small);
        CHECK_LE(budget->used_bytes(), budget->limit_bytes());
        CHECK_EQ(store.Stats().rows * kRowBytes, budget->used_bytes());
      }
    }
  }
}

TEST(StoresThatShareABudgetTakeFromOneAnother) {
  const auto budget = RoomFor(10, 2);
  const TestStore a(SmallOptions(2), budget);
  a.Lookup(Range(0, 6));
  {
    const TestStore b(SmallOptions(2), budget);
    b.Lookup(Range(0, 4));
    CHECK_EQ(budget->used_bytes(), 10 * kRowBytes);
    CHECK(!a.TryLookup({{6}}).ok());
    CHECK(!b.TryLookup({{6}}).ok());
  }
  // The other's rows went with it.
  CHECK_EQ(budget->used_bytes(), 6 * kRowBytes);
  a.Lookup(Range(6, 10));
}

TEST(EvictingStoresThatShareABudgetKeepItTogether) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const auto budget = RoomFor(300, 2);
    const TestStore a(Evicting(2, policy), budget);
    const TestStore b(Evicting(3), budget);
    a.Lookup(Range(0, 300));
    CHECK_EQ(a.Stats().rows, 300);
    for (int64_t step = 0; step < 50; ++step) {
      a.Lookup(Range(step * 20, step * 20 + 20));
      b.Lookup(Range(step * 20, step * 20 + 20));
    }
    a.Lookup({{0}});
    CHECK_LE(budget->used_bytes(), budget->limit_bytes());
    CHECK_EQ((a.Stats().rows + b.Stats().rows) * kRowBytes,
             budget->used_bytes());
    // The newcomer got a share.
    CHECK_GE(b.Stats().rows, 20);
  }
}

TEST(AllBytesComeBackWhenTheStoresAreGone) {
  const auto budget = RoomFor(50, 2);
  {
    const TestStore a(Evicting(2), budget);
    const TestStore b(Evicting(0), budget);
    Random random(2);
    for (int step = 0; step < 200; ++step) {
      const TestStore& store = step % 2 == 0 ? a : b;
      Keys keys({});
      for (int i = 0; i < 30; ++i) keys.ids.push_back(random.Below(100));
      const LookupResult found = store.Lookup(keys);
      if (step % 3 == 0) store.Remove({{keys.ids[0], keys.ids[1]}});
      if (step % 5 == 0) store.Write(keys, Floats(60, 2));
      if (step % 7 == 0) store.Import(store.Export(), store->step());
      store.Update(found.ticket, Floats(60, 1), 0.5f);
      CHECK_EQ((a.Stats().rows + b.Stats().rows) * kRowBytes,
               budget->used_bytes());
    }
  }
  CHECK_EQ(budget->used_bytes(), 0);
}

}  // namespace
}  // namespace tfctr
