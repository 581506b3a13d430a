// A training step of a store: its lookups, their tickets and its one update.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::Keys;
using testing::LookupResult;
using testing::Random;
using testing::SmallOptions;
using testing::Table;
using testing::TestStore;
using Floats = std::vector<float>;
using Kind = SparseOptimizer::Kind;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Kind kEveryKind[] = {Kind::kSgd, Kind::kAdagrad, Kind::kRowwiseAdagrad,
                           Kind::kAdam, Kind::kFtrl};

// One shard, so that a slot that is freed is the next one used.
StoreOptions OneShard(int64_t dim, Kind kind = Kind::kSgd) {
  StoreOptions options = SmallOptions(dim, kind);
  options.shard_bits = 0;
  return options;
}

// Three steps of `num_lookups` lookups each, every one a piece of the same
// batch. The gradients come in the order of the lookups, or the last one first.
Table TrainInPieces(Kind kind, size_t num_lookups, bool last_first) {
  constexpr size_t kNumKeys = 120;
  constexpr int64_t kDim = 3;
  const TestStore store(SmallOptions(kDim, kind));
  Random random(1);
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<LookupResult> lookups;
    std::vector<Floats> gradients;
    for (size_t p = 0; p < num_lookups; ++p) {
      Keys keys({});
      for (size_t i = 0; i < kNumKeys / num_lookups; ++i) {
        keys.ids.push_back(random.Below(25));
        const Floats gradient = random.Uniforms(kDim, -1.0f, 1.0f);
        if (i == 0) gradients.emplace_back();
        gradients.back().insert(gradients.back().end(), gradient.begin(),
                                gradient.end());
      }
      lookups.push_back(store.Lookup(keys));
    }
    for (size_t i = 0; i < num_lookups; ++i) {
      const size_t p = last_first ? num_lookups - 1 - i : i;
      CHECK_EQ(store.Update(lookups[p].ticket, gradients[p], 0.1f), step);
      CHECK_EQ(store->step(), step);
    }
  }
  return store.Export();
}

TEST(SeveralLookupsOfAStepMakeOneUpdate) {
  for (const Kind kind : kEveryKind) {
    const Table whole = TrainInPieces(kind, 1, false);
    for (const size_t num_lookups : {2, 3, 4, 8}) {
      CHECK_EQ(TrainInPieces(kind, num_lookups, false), whole);
      CHECK_EQ(TrainInPieces(kind, num_lookups, true), whole);
    }
  }
}

// A row of {6, 8} whose gradient may be 5 long for each sample.
StoreOptions ClippingOptions(Kind kind = Kind::kSgd) {
  StoreOptions options = OneShard(2, kind);
  options.optimizer.clip_ratio = 0.5f;
  options.optimizer.clip_floor = 1e-5f;
  return options;
}

Keys CountedKeys(std::vector<int64_t> ids, std::vector<int32_t> counts) {
  Keys keys(std::move(ids));
  keys.counts = std::move(counts);
  return keys;
}

TEST(TheSumOfAKeysGradientsIsClippedByTheSumOfItsCounts) {
  const struct {
    std::vector<int32_t> counts;
    Floats expected;
  } cases[] = {{{}, {0, 0}},  // Each once.
               {{1, 1}, {0, 0}},
               {{1, 0}, {3, 4}},
               {{0, 3}, {-3, -4}},
               {{0, 0}, {6, 8}}};
  for (const auto& [counts, expected] : cases) {
    const TestStore store(ClippingOptions());
    store.Write({{5, 6}}, {6, 8, 6, 8});
    store.Train(CountedKeys({5, 5}, counts), {16, 24, 32, 40}, 1.0f);
    CHECK_EQ(store.Read({{5, 6}}), (Floats{expected[0], expected[1], 6, 8}));
    CHECK_EQ(store.Stats().updated_rows, 1);
    CHECK_EQ(store.Stats().clipped_rows, 1);
  }
}

TEST(CountsOfSeveralLookupsOfAStepAddUp) {
  const TestStore store(ClippingOptions());
  store.Write({{5}}, {6, 8});
  const LookupResult a = store.Lookup(CountedKeys({5, 7}, {1, 1}));
  const LookupResult b = store.Lookup(CountedKeys({8, 5}, {1, 2}));
  store.Lookup(CountedKeys({5}, {9}));  // Dropped: it has no gradient.
  store.Update(b.ticket, {0, 0, 24, 32}, 1.0f);
  store.Update(a.ticket, {24, 32, 0, 0}, 1.0f);
  CHECK_EQ(store.Read({{5}}), (Floats{-3, -4}));
  CHECK_EQ(store.Stats().updated_rows, 3);
  CHECK_EQ(store.Stats().clipped_rows, 1);
}

TEST(CountsFollowTheirRowsThatLeftInBetween) {
  const TestStore store(ClippingOptions());
  store.Write({{5, 6}}, {6, 8, 6, 8});
  const LookupResult a = store.Lookup(CountedKeys({5, 6}, {1, 2}));
  store.Remove({{5, 6}});
  store.Lookup({{7}});
  store.Write({{6, 5}}, {6, 8, 6, 8});  // Back, but not where they were.
  store.Update(a.ticket, {24, 32, 24, 32}, 1.0f);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{3, 4, 0, 0}));
}

TEST(RefusedKeysAreNeitherCountedNorClipped) {
  StoreOptions options = ClippingOptions();
  options.admission.kind = AdmissionOptions::Kind::kCount;
  options.admission.min_count = 3;
  const TestStore store(options);
  store.Write({{5}}, {6, 8});
  store.Train(CountedKeys({7, 5, 7}, {1, 2, 1}), {9, 9, 24, 32, 9, 9}, 1.0f);
  CHECK_EQ(store.Read({{5, 7}}), (Floats{0, 0, 0, 0}));
  CHECK_EQ(store.Stats().updated_rows, 1);
  CHECK_EQ(store.Stats().clipped_rows, 1);
}

TEST(TheClipSeesTheWeightsBeforeTheirDecay) {
  StoreOptions options = ClippingOptions();
  options.optimizer.weight_decay = 0.5f;
  options.optimizer.l2_penalty = 0.25f;
  const TestStore store(options);
  store.Write({{5}}, {6, 8});
  store.Train({{5}}, {24, 32}, 1.0f);
  // The gradient is {3, 4} + 0.5 {6, 8}, the decayed weights are {3, 4}.
  CHECK_EQ(store.Read({{5}}), (Floats{-3, -4}));
}

TEST(WithoutAClipCountsChangeNoUpdate) {
  for (const Kind kind : kEveryKind) {
    const TestStore store(OneShard(2, kind));
    const TestStore expected(OneShard(2, kind));
    store.Train(CountedKeys({5, 6, 5}, {0, 2, 7}), {1, 2, 3, 4, 5, 6}, 0.5f);
    expected.Train({{5, 6, 5}}, {1, 2, 3, 4, 5, 6}, 0.5f);
    CHECK_EQ(store.Export(), expected.Export());
    CHECK_EQ(store.Stats().updated_rows, 2);
    CHECK_EQ(store.Stats().clipped_rows, 0);
  }
}

TEST(AReadOrExportBetweenTwoGradientsEndsTheStep) {
  const auto read = [](const TestStore& s) { s.Read({{9}}); };
  const auto export_all = [](const TestStore& s) { s.Export(); };
  const auto lookup = [](const TestStore& s) { s.Lookup({{9}}); };
  for (void (*end_step)(const TestStore&) : {+read, +export_all, +lookup}) {
    const TestStore store(SmallOptions(1));
    const LookupResult a = store.Lookup({{5}});
    const LookupResult b = store.Lookup({{5}});
    CHECK_EQ(store.Update(a.ticket, {1}, 0.5f), 1);
    end_step(store);
    CHECK_EQ(store.Update(b.ticket, {1}, 0.5f), 2);
    CHECK_EQ(store.Read({{5}}), Floats{0});
    CHECK_EQ(store.Export().at({0, 5}).count, 2);
  }
}

TEST(ReadersSeeGradientsThatHaveCome) {
  const TestStore store(SmallOptions(1));
  const LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{6}});
  store.Update(a.ticket, {1}, 0.25f);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{0.75f, 0}));
  CHECK_EQ(store.Lookup({{5, 6}}).rows, (Floats{0.75f, 1}));
  store.Update(b.ticket, {1}, 0.5f);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{0.75f, 0.5f}));
}

TEST(AWriteOverridesGradientsThatHaveCome) {
  const TestStore store(SmallOptions(1));
  const LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{5}});
  store.Update(a.ticket, {1}, 0.25f);
  store.Write({{5}}, {8});
  store.Update(b.ticket, {2}, 0.5f);
  CHECK_EQ(store.Read({{5}}), Floats{7});
}

// Updates with a gradient of ones; returns what tells whether it is still kept.
std::weak_ptr<Floats> WatchedUpdate(const TestStore& store,
                                    const std::shared_ptr<Ticket>& ticket) {
  auto gradient = std::make_shared<Floats>(
      static_cast<size_t>(ticket->num_keys() * store.dim()), 1.0f);
  const std::weak_ptr<Floats> watched = gradient;
  const float* values = gradient->data();
  int64_t step = -1;
  CHECK_OK(store->Update(ticket, {values, std::move(gradient)}, 0.5f,
                         store.executor(), &step));
  return watched;
}

TEST(AGradientIsKeptUntilTheLastTicketReports) {
  const TestStore store(SmallOptions(1));
  const LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{6}});
  const std::weak_ptr<Floats> watched = WatchedUpdate(store, a.ticket);
  CHECK(!watched.expired());
  store.Update(b.ticket, {1}, 0.5f);
  CHECK(watched.expired());
  CHECK_EQ(store.Read({{5, 6}}), (Floats{0.5f, 0.5f}));
}

TEST(ADroppedTicketDoesNotHoldBackTheStep) {
  const TestStore store(SmallOptions(1));
  store.Lookup({{5}});
  LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{5}});
  a.ticket.reset();
  CHECK(WatchedUpdate(store, b.ticket).expired());
  CHECK_EQ(store.Train({{5}}, {1}, 0.25f), 2);
  CHECK_EQ(store.Read({{5}}), Floats{0.25f});
}

TEST(ATicketDroppedLastDoesNotLoseTheStep) {
  const TestStore store(SmallOptions(1));
  LookupResult a = store.Lookup({{5}});
  LookupResult b = store.Lookup({{5}});
  CHECK_EQ(store.Update(a.ticket, {1}, 0.5f), 1);
  b.ticket.reset();
  CHECK_EQ(store.Train({{5}}, {1}, 0.25f), 2);
  CHECK_EQ(store.Read({{5}}), Floats{0.25f});
}

TEST(ATicketThatIsAskedTwiceIsAnError) {
  const TestStore store(SmallOptions(1));
  const LookupResult a = store.Lookup({{5}});
  store.Update(a.ticket, {1}, 0.5f);
  int64_t step = -1;
  const Status status = store.TryUpdate(a.ticket, {1}, 0.5f, &step);
  CHECK_EQ(status.code(), StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(status.message(),
                 "Table 'ads' was asked twice for the gradient of one lookup");
  CHECK_CONTAINS(status.message(), "do not use a persistent tape twice");
  CHECK_EQ(store.Read({{5}}), Floats{0.5f});
  CHECK_EQ(store->step(), 1);
  CHECK_EQ(store.Train({{5}}, {1}, 0.25f), 2);
}

TEST(ATicketKeepsItsStoreAlive) {
  std::shared_ptr<Ticket> ticket;
  {
    const TestStore store(SmallOptions(1));
    ticket = store.Lookup({{5}}).ticket;
  }
  CHECK_EQ(ticket->store().options().name, "ads");
  CHECK_EQ(ticket->num_keys(), 1);
}

TEST(ARowRemovedBeforeItsGradientComesIsBroughtBack) {
  for (const Kind kind : kEveryKind) {
    const TestStore store(OneShard(1, kind));
    const TestStore expected(OneShard(1, kind));
    store.Write({{5}}, {7});
    const LookupResult a = store.Lookup({{5, 5}});
    store.Remove({{5}});
    store.Update(a.ticket, {1, 2}, 0.5f);
    expected.Train({{5, 5}}, {1, 2}, 0.5f);
    CHECK_EQ(store.Export(), expected.Export());
    CHECK_EQ(store.Stats().rows, 1);
    CHECK_EQ(store.Stats().known_rows, 1);
  }
}

TEST(TheKeyInAReusedSlotTakesNoForeignGradient) {
  const TestStore store(OneShard(1));
  store.Lookup({{6}});
  const LookupResult a = store.Lookup({{5, 6}});
  store.Remove({{5}});
  store.Write({{7}}, {4});  // Where 5 was.
  store.Update(a.ticket, {1, 1}, 0.5f);
  CHECK_EQ(store.Read({{5, 6, 7}}), (Floats{0.5f, 0.5f, 4}));
  CHECK_EQ(store.Export().at({0, 7}).count, 0);
}

TEST(EqualIdsOfOtherFeaturesInAReusedSlotTakeNoForeignGradient) {
  const TestStore store(OneShard(1));
  const LookupResult a = store.Lookup({{5}, {0}});
  store.Remove({{5}, {0}});
  store.Write({{5}, {1}}, {4});
  store.Update(a.ticket, {1}, 0.5f);
  CHECK_EQ(store.Read({{5, 5}, {0, 1}}), (Floats{0.5f, 4}));
}

TEST(ARowThatMovedTakesItsGradient) {
  const TestStore store(OneShard(1));
  const LookupResult a = store.Lookup({{5, 6}});
  store.Remove({{5, 6}});
  store.Lookup({{7}});
  store.Write({{5}}, {4});  // Back, but not where it was.
  store.Update(a.ticket, {1, 1}, 0.5f);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{3.5f, 0.5f}));
  CHECK_EQ(store.Stats().rows, 3);
}

TEST(RowsThatLeftBetweenTheLookupsOfAStepLoseNoGradient) {
  const TestStore store(OneShard(1, Kind::kAdagrad));
  const LookupResult a = store.Lookup({{5, 6, 7, 5}});
  store.Remove({{5, 6}});
  const LookupResult b = store.Lookup({{6, 8, 6}});
  store.Remove({{7, 8}});
  const LookupResult c = store.Lookup({{8, 9}});
  store.Update(b.ticket, {10, 20, 30}, 0.5f);
  store.Update(c.ticket, {100, 200}, 0.5f);
  CHECK_EQ(store.Update(a.ticket, {1, 2, 3, 4}, 0.5f), 1);

  const TestStore expected(OneShard(1, Kind::kAdagrad));
  expected.Train({{5, 6, 7, 8, 9}}, {5, 42, 3, 120, 200}, 0.5f);
  CHECK_EQ(store.Export(), expected.Export());
  CHECK_EQ(store.Stats().rows, 5);
}

TEST(AGradientOfALookupBeforeAnImportIsDropped) {
  const TestStore store(SmallOptions(1));
  store.Train({{5}}, {1}, 0.5f);
  const Table table = store.Export();
  const LookupResult a = store.Lookup({{5, 6}});
  const LookupResult b = store.Lookup({{5, 6}});
  CHECK_EQ(store.Update(a.ticket, {1, 1}, 0.5f), 2);
  store.Import(table, 1);
  CHECK_EQ(store.Update(b.ticket, {1, 1}, 0.5f), 1);
  CHECK_EQ(store.Export(), table);
  CHECK_EQ(store->step(), 1);
}

const float kBadValues[] = {kNaN,       kInfinity,
                            -kInfinity, 1.001e12f,
                            -1.001e12f, std::numeric_limits<float>::max()};

TEST(ABadGradientIsAnErrorAndChangesNothing) {
  for (const float bad : kBadValues) {
    const TestStore store(SmallOptions(2, Kind::kAdam));
    store.Train({{5, 6}}, {1, 2, 3, 4}, 0.5f);
    const Table before = store.Export();
    const LookupResult a = store.Lookup({{5, 6}});
    int64_t step = -1;
    const Status status =
        store.TryUpdate(a.ticket, {1, 2, 3, bad}, 0.5f, &step);
    CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(),
                   "Table 'ads' received a gradient that is NaN, infinite or "
                   "larger than 1e12, in update 2. No row was changed.");
    CHECK_CONTAINS(status.message(), "TableConfig(bad_gradients='skip')");
    CHECK_EQ(store.Export(), before);
    CHECK_EQ(store->step(), 1);
    CHECK_EQ(store.Stats().skipped_updates, 0);
    CHECK_EQ(store.Train({{5}}, {1, 1}, 0.5f), 2);
  }
}

TEST(TheMessageNamesTheUpdateThatABadGradientWasPartOf) {
  const TestStore store(SmallOptions(1));
  const LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{6}});
  CHECK_EQ(store.Update(a.ticket, {1}, 0.5f), 1);
  int64_t step = -1;
  const Status status = store.TryUpdate(b.ticket, {kNaN}, 0.5f, &step);
  CHECK_CONTAINS(status.message(), "in update 1.");
}

TEST(ABadGradientCanBeSkippedAndCounted) {
  for (const float bad : kBadValues) {
    StoreOptions options = SmallOptions(1, Kind::kAdagrad);
    options.skip_bad_gradients = true;
    const TestStore store(options);
    store.Train({{5, 6}}, {1, 2}, 0.5f);
    const Table before = store.Export();
    CHECK_EQ(store.Train({{5, 6}}, {1, bad}, 0.5f), 1);
    CHECK_EQ(store.Export(), before);
    CHECK_EQ(store.Stats().skipped_updates, 1);
    CHECK_EQ(store.Train({{5, 6}}, {bad, 1}, 0.5f), 1);
    CHECK_EQ(store.Export(), before);
    CHECK_EQ(store.Stats().skipped_updates, 2);
    CHECK_EQ(store.Train({{5}}, {1}, 0.5f), 2);
  }
}

TEST(AStepWithABadGradientIsSkippedWhole) {
  StoreOptions options = SmallOptions(1);
  options.skip_bad_gradients = true;
  const TestStore store(options);
  const LookupResult a = store.Lookup({{5}});
  const LookupResult b = store.Lookup({{5, 6}});
  const LookupResult c = store.Lookup({{6}});
  const LookupResult d = store.Lookup({{6}});
  CHECK_EQ(store.Update(c.ticket, {1}, 0.5f), 1);
  CHECK_EQ(store.Update(b.ticket, {1, kNaN}, 0.5f), 0);
  CHECK_EQ(store.Update(d.ticket, {kNaN}, 0.5f), 0);
  CHECK_EQ(store.Update(a.ticket, {1}, 0.5f), 0);
  CHECK_EQ(store.Stats().known_rows, 0);
  CHECK_EQ(store.Stats().skipped_updates, 1);
  CHECK_EQ(store.Train({{5, 6}}, {1, 1}, 0.5f), 1);
  CHECK_EQ(store.Read({{5, 6}}), (Floats{0.5f, 0.5f}));
}

TEST(AStepWithABadGradientChangesNoRowWhenItIsAnError) {
  for (const bool bad_comes_first : {false, true}) {
    const TestStore store(SmallOptions(1));
    const LookupResult good = store.Lookup({{5}});
    const LookupResult bad = store.Lookup({{6}});
    int64_t step = -1;
    if (!bad_comes_first) store.Update(good.ticket, {1}, 0.5f);
    CHECK(!store.TryUpdate(bad.ticket, {kNaN}, 0.5f, &step).ok());
    if (bad_comes_first) store.Update(good.ticket, {1}, 0.5f);
    CHECK_EQ(store.Read({{5, 6}}), (Floats{0, 0}));
    store.Train({{5, 6}}, {1, 1}, 0.5f);
    CHECK_EQ(store.Read({{5, 6}}), (Floats{0.5f, 0.5f}));
  }
}

TEST(AGradientAtTheBoundIsUsed) {
  const TestStore store(SmallOptions(1));
  store.Train({{5, 6}}, {1e12f, -1e12f}, 1e-12f);
  CHECK_NEAR(store.Read({{5}})[0], 0, 1e-6);
  CHECK_NEAR(store.Read({{6}})[0], 2, 1e-6);
}

TEST(OneBadValueAnywhereInALargeGradientIsSeen) {
  const TestStore store(SmallOptions(16));
  Keys keys({});
  for (int64_t id = 0; id < 10000; ++id) keys.ids.push_back(id);
  for (const size_t at : {0, 65535, 65536, 65537, 131071, 131072, 159999}) {
    Floats gradient(160000, 1);
    gradient[at] = kNaN;
    int64_t step = -1;
    const LookupResult a = store.Lookup(keys);
    CHECK_EQ(store.TryUpdate(a.ticket, gradient, 0.5f, &step).code(),
             StatusCode::kInvalidArgument);
  }
  CHECK_EQ(store.Stats().known_rows, 0);
}

}  // namespace
}  // namespace tfctr
