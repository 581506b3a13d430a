// Which keys get a row, and that counts survive whatever rows do.

#include "tfctr_ops/cc/store/admission.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tests/tfctr_ops/cc/thread_executor.h"
#include "tfctr_ops/cc/store/bloom_filter.h"
#include "tfctr_ops/cc/store/count_table.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::Key;
using testing::Keys;
using testing::Random;
using testing::Range;
using testing::RoomFor;
using testing::SmallOptions;
using testing::TemporaryDirectory;
using testing::TestStore;
using testing::ThreadExecutor;
using Floats = std::vector<float>;
using Kind = AdmissionOptions::Kind;

const std::vector<int32_t> kFeatures = {0, 1, 2};

StoreOptions Options(Kind kind, int64_t min_count) {
  StoreOptions options = SmallOptions(1);
  options.admission.kind = kind;
  options.admission.min_count = min_count;
  options.admission.expected_keys = 1000;
  options.default_row = {-7.0f};
  return options;
}

Status Restore(const TestStore& store, const std::string& path,
               const std::vector<int32_t>& features = kFeatures) {
  return store->Restore(path, features, {}, store.executor());
}

// Rows start as ones, so that shows who has one.
bool HasRow(const TestStore& store, int64_t id, int32_t feature = 0) {
  const float row = store.Lookup(Keys({id}, {feature})).rows[0];
  CHECK(row == 1.0f || row == -7.0f);
  return row == 1.0f;
}

constexpr Kind kCounting[] = {Kind::kCount, Kind::kBloom};

TEST(TheLookupThatCompletesTheCountAdmitsTheKey) {
  for (const Kind kind : kCounting) {
    const TestStore store(Options(kind, 3));
    // Once, twice in one batch, once: of these the third is the third.
    CHECK_EQ(store.Lookup(Keys({5})).rows, Floats{-7.0f});
    CHECK_EQ(store.Lookup(Keys({8, 9, 8})).rows, Floats(3, -7.0f));
    CHECK_EQ(store.Lookup(Keys({5, 8, 5})).rows, Floats(3, 1.0f));
    CHECK_EQ(store.Lookup(Keys({6, 6, 6, 6})).rows, Floats(4, 1.0f));
    CHECK_EQ(store.Lookup(Keys({5, 9})).rows, (Floats{1.0f, -7.0f}));
    // Features count apart.
    CHECK_EQ(store.Lookup(Keys({9}, {1})).rows, Floats{-7.0f});
    const StoreStats stats = store.Stats();
    CHECK_EQ(stats.rows, 3);
    CHECK_EQ(stats.refused_keys, 1 + 3 + 1 + 1);
    CHECK_EQ(stats.tracked_keys, kind == Kind::kCount ? 2 : 0);
    CHECK_GT(stats.admission_bytes, 0);
  }
}

TEST(KeysCountAsOftenAsTheCallerSays) {
  for (const Kind kind : kCounting) {
    const TestStore store(Options(kind, 3));
    Keys keys({5, 8, 5, 9});
    keys.counts = {2, 1, 0, 3};
    CHECK_EQ(store.Lookup(keys).rows, (Floats{-7.0f, -7.0f, -7.0f, 1.0f}));
    keys.counts = {1, 1, 0, 0};
    CHECK_EQ(store.Lookup(keys).rows, (Floats{1.0f, -7.0f, 1.0f, 1.0f}));
    CHECK_EQ(store.Stats().refused_keys, 3 + 1);
  }
}

TEST(AKeyThatCountsZeroTimesIsNotCounted) {
  for (const Kind kind : kCounting) {
    const TestStore store(Options(kind, 3));
    Keys keys({5, 8});
    keys.counts = {0, 1};
    store.Lookup(keys);
    CHECK_EQ(store.Stats().tracked_keys, kind == Kind::kCount ? 1 : 0);
    // Which the counts of a snapshot must agree with.
    std::vector<char> bytes;
    CHECK_OK(store->ExportAdmission(store.executor(), &bytes));
    const TestStore other(Options(kind, 3));
    CHECK_OK(other->ImportAdmission(bytes, {0, 1, 2}, other.executor()));
  }
}

TEST(GradientsOfRefusedKeysAreDroppedAndOthersStayAtTheirRows) {
  const TestStore store(Options(Kind::kCount, 2));
  store.Train(Keys({1, 2, 1, 3, 4, 4}), {1, 10, 2, 20, 4, 8}, 0.5f);
  const testing::Table table = store.Export();
  CHECK_EQ(table.size(), size_t{2});
  CHECK_EQ(table.at({0, 1}).floats, Floats{1.0f - 0.5f * 3});
  CHECK_EQ(table.at({0, 4}).floats, Floats{1.0f - 0.5f * 12});
  // A batch of refused keys alone is an update, too.
  CHECK_EQ(store.Train(Keys({5, 6}), {1, 1}, 0.5f), 2);
  CHECK_EQ(store.Export(), table);
}

TEST(AnUpdateKnowsWhichKeysItsOwnLookupRefused) {
  const TestStore store(Options(Kind::kCount, 2));
  const auto first = store.Lookup(Keys({7}));
  const auto second = store.Lookup(Keys({7}));  // Which admits it.
  CHECK_EQ(first.rows, Floats{-7.0f});
  CHECK_EQ(second.rows, Floats{1.0f});
  store.Update(first.ticket, {100.0f}, 0.5f);
  store.Update(second.ticket, {1.0f}, 0.5f);
  CHECK_EQ(store.Read(Keys({7})), Floats{0.5f});
}

TEST(OnlyTrainingLookupsCount) {
  const TestStore store(Options(Kind::kCount, 2));
  for (int i = 0; i < 5; ++i) {
    CHECK_EQ(store.Read(Keys({1})), Floats{-7.0f});
    CHECK_OK(store->Prefetch(Keys({1}), store.executor()));
  }
  CHECK(!HasRow(store, 1));
  CHECK(HasRow(store, 1));
  // And who writes a row means it.
  store.Write(Keys({2}), {4.0f});
  CHECK_EQ(store.Read(Keys({2})), Floats{4.0f});
}

TEST(ARemovedKeyCountsFromTheStart) {
  const TestStore store(Options(Kind::kCount, 3));
  CHECK(!HasRow(store, 1));
  CHECK(!HasRow(store, 1));
  CHECK_EQ(store.Remove(Keys({1})), 0);
  CHECK(!HasRow(store, 1));
  CHECK(!HasRow(store, 1));
  CHECK(HasRow(store, 1));
  CHECK_EQ(store.Remove(Keys({1})), 0);  // It was never updated.
  CHECK(!HasRow(store, 1));
}

TEST(RefusedKeysTakeNoRoomAndAFullStoreCountsNothing) {
  const TestStore store(Options(Kind::kCount, 2), RoomFor(1));
  for (int64_t id = 0; id < 50; ++id) CHECK(!HasRow(store, id));
  CHECK(HasRow(store, 0));
  const int64_t refused = store.Stats().refused_keys;
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(store.TryLookup(Keys({1, 99})).code(),
             StatusCode::kResourceExhausted);
  }
  CHECK_EQ(store.Stats().refused_keys, refused);
  store.Remove(Keys({0}));
  CHECK(!HasRow(store, 99));
  CHECK(HasRow(store, 99));
}

TEST(AnAdmittedKeyWhoseRowWasNeverUpdatedStaysAdmitted) {
  for (const Kind kind : {Kind::kCount, Kind::kBloom, Kind::kProbability}) {
    for (const bool over_ssd : {false, true}) {
      const TemporaryDirectory ssd;
      StoreOptions options = Options(kind, 2);
      options.admission.probability = 0.3;
      options.eviction_policy = EvictionPolicy::kClock;
      if (over_ssd) options.ssd.directory = ssd.path();
      const TestStore store(options, RoomFor(4));
      while (!HasRow(store, 1)) continue;
      for (int64_t id = 10; id < 40; ++id) {
        while (!HasRow(store, id)) store.Train(Keys({0, 0}), {1, 1}, 0.1f);
      }
      CHECK_GT(store.Stats().evicted_rows, 20);
      CHECK(HasRow(store, 1));
    }
  }
}

TEST(ProbabilityAdmitsAsOftenAsItSays) {
  StoreOptions options = Options(Kind::kProbability, 1);
  options.admission.probability = 0.1;
  const int64_t n = 20000;
  for (const int64_t occurrences : {1, 3}) {
    const TestStore store(options), again(options);
    Keys keys({});
    for (int64_t i = 0; i < n * occurrences; ++i) keys.ids.push_back(i % n);
    const Floats rows = store.Lookup(keys).rows;
    CHECK_EQ(again.Lookup(keys).rows, rows);
    const double p = 1 - std::pow(0.9, static_cast<double>(occurrences));
    const double deviation = std::sqrt(static_cast<double>(n) * p * (1 - p));
    CHECK_NEAR(static_cast<double>(store.Stats().rows),
               p * static_cast<double>(n), 4 * deviation);
    CHECK_EQ(store.Stats().tracked_keys, 0);
  }
}

TEST(ProbabilityDrawsAnewInEveryStep) {
  StoreOptions options = Options(Kind::kProbability, 1);
  options.admission.probability = 0.5;
  const TestStore store(options);
  const Keys keys = Range(0, 4000);
  for (const double share : {0.5, 0.75, 0.875}) {
    store.Train(keys, Floats(4000, 1.0f), 0.1f);
    CHECK_NEAR(static_cast<double>(store.Stats().rows), 4000 * share, 150);
  }
}

TEST(ABloomFilterHasTheSizesOfTheTextbook) {
  const CountingBloomFilter filter(1000000, 0.01, 255);
  CHECK_EQ(filter.num_hashes(), 7);  // log2(100) = 6.64
  // -7 / ln(1 - 0.01^(1/7)) = 9.593
  CHECK_NEAR(static_cast<double>(filter.num_counters()), 9593000, 1000);
  CHECK_EQ(filter.bytes(), filter.num_counters());
  CHECK_EQ(CountingBloomFilter(1000, 0.01, 256).counter_bytes(), 2);
  CHECK_EQ(CountingBloomFilter(1, 0.9, 1).num_hashes(), 1);
}

TEST(ABloomFilterIsRightAsOftenAsItSays) {
  for (const double rate : {0.1, 0.01, 0.001}) {
    const int64_t n = 50000;
    CountingBloomFilter filter(n, rate, 20);
    Random random(1);
    std::vector<uint64_t> keys;
    for (int64_t i = 0; i < n; ++i) keys.push_back(random.Bits());
    int64_t too_high_at_once = 0;
    for (const uint64_t key : keys) {
      too_high_at_once += filter.Count(key) > 0;
      filter.Raise(key, filter.Count(key) + 1);
    }
    // While it fills, and when it is full.
    CHECK_LE(static_cast<double>(too_high_at_once), rate * n);
    int64_t too_high = 0;
    for (int64_t i = 0; i < n; ++i) too_high += filter.Count(random.Bits()) > 0;
    const double deviation = std::sqrt(n * rate * (1 - rate));
    CHECK_LE(static_cast<double>(too_high), rate * n + 3 * deviation);
    for (const uint64_t key : keys) CHECK_GE(filter.Count(key), 1U);
  }
}

TEST(ABloomFilterNeverAdmitsTooLate) {
  // Far too small, so that nearly all counts are wrong.
  StoreOptions options = Options(Kind::kBloom, 300);  // 16 bits.
  options.admission.expected_keys = 20;
  const TestStore store(options);
  Random random(3);
  std::map<int64_t, int64_t> counts;
  for (int i = 0; i < 4000; ++i) {
    const int64_t id = random.Below(100), n = 1 + random.Below(40);
    const Keys keys(std::vector<int64_t>(static_cast<size_t>(n), id));
    const bool has_row = store.Lookup(keys).rows[0] == 1.0f;
    counts[id] += n;
    if (counts[id] >= 300) CHECK(has_row);
  }
}

// A batch that many threads count at once, of keys that share counters.
TEST(ResultsDoNotDependOnThreadsOrShards) {
  for (const Kind kind : {Kind::kCount, Kind::kBloom, Kind::kProbability}) {
    Floats expected;
    std::vector<char> saved;
    for (const int num_threads : {1, 2, 4}) {
      for (const int shard_bits : {0, 6}) {
        StoreOptions options = Options(kind, 4);
        options.shard_bits = shard_bits;
        options.admission.probability = 0.2;
        ThreadExecutor executor(num_threads);
        const TestStore store(options, testing::NoLimit(), &executor);
        Random random(5);
        Floats rows;
        for (int step = 0; step < 5; ++step) {
          Keys keys({}, kFeatures);
          for (int i = 0; i < 9000; ++i) keys.ids.push_back(random.Below(6000));
          const auto found = store.Lookup(keys);
          rows.insert(rows.end(), found.rows.begin(), found.rows.end());
          store.Update(found.ticket, Floats(9000, 0.0f), 0.1f);
        }
        if (expected.empty()) expected = rows;
        CHECK_EQ(rows, expected);
        if (kind != Kind::kBloom) continue;
        std::vector<char> bytes;
        CHECK_OK(store->ExportAdmission(&executor, &bytes));
        if (saved.empty()) saved = bytes;
        CHECK(bytes == saved);
      }
    }
  }
}

TEST(ATableOfCountsEqualsAMap) {
  CountTable table(17);
  std::map<Key, uint32_t> expected;
  Random random(6);
  for (int i = 0; i < 200000; ++i) {
    const Key key(static_cast<int32_t>(random.Below(3)),
                  random.Below(i % 50000 < 25000 ? 3000 : 300));
    const auto feature = static_cast<uint32_t>(key.first);
    const auto it = expected.find(key);
    CHECK_EQ(table.Find(feature, key.second),
             it == expected.end() ? 0U : it->second);
    if (random.Below(2) == 0) {
      const auto count = static_cast<uint32_t>(1 + random.Below(1000));
      table.Set(feature, key.second, count);
      expected[key] = count;
    } else {
      table.Erase(feature, key.second);
      expected.erase(key);
    }
    CHECK_EQ(table.size(), static_cast<int64_t>(expected.size()));
  }
  std::vector<CountTable::Entry> entries;
  table.AppendTo(&entries);
  CHECK_EQ(entries.size(), expected.size());
  for (const CountTable::Entry& entry : entries) {
    const Key key(static_cast<int32_t>(entry.feature), entry.id);
    CHECK_EQ(expected.at(key), entry.count);
  }
  table.Clear();
  CHECK_EQ(table.Find(0, 0), 0U);
  CHECK_EQ(table.allocated_bytes(), 0);
}

// Keys 0 to 9 of each feature, key k seen k times; 20 admitted, not updated.
void CountSome(const TestStore& store) {
  for (const int32_t feature : kFeatures) {
    for (int64_t id = 0; id < 10; ++id) {
      for (int64_t i = 0; i < id; ++i) {
        CHECK(!HasRow(store, 100 * feature + id, feature));
      }
    }
    Keys keys(std::vector<int64_t>(10, 20), {feature});
    CHECK_EQ(store.Lookup(keys).rows, Floats(10, 1.0f));
  }
}

TEST(ASnapshotKeepsCountsUnderTheNumbersThatFeaturesGet) {
  for (const Kind kind : kCounting) {
    const TemporaryDirectory directory;
    const TestStore saved(Options(kind, 10));
    CountSome(saved);
    saved.Save(directory.path() + "/0");
    const std::string first = directory.path() + "/0";
    const std::string second = directory.path() + "/1";
    StoreOptions options = Options(kind, 10);
    options.shard_bits = 5;
    options.feature_seeds = {1, 2, 3, 4, 5};
    const TestStore store(options);
    CHECK(!HasRow(store, 3, 0));  // Which is forgotten.
    CHECK_OK(Restore(store, first, {4, 0, 2}));
    // And once more, on into the old numbers.
    store.Save(second);
    const TestStore last(Options(kind, 10));
    CHECK_OK(Restore(last, second, {1, 0, 2, 0, 0}));
    const std::vector<int32_t> now[] = {{4, 0, 2}, {0, 1, 2}};
    for (const auto& [numbers, each] :
         {std::pair(now[0], &store), std::pair(now[1], &last)}) {
      for (size_t f = 0; f < 3; ++f) {
        const int32_t feature = numbers[f];
        const auto base = static_cast<int64_t>(100 * f);
        CHECK(HasRow(*each, 20, feature));
        for (int64_t id = 1; id < 10; ++id) {
          for (int64_t i = id; i < 9; ++i) {
            CHECK(!HasRow(*each, base + id, feature));
          }
          CHECK(HasRow(*each, base + id, feature));
        }
      }
    }
    // Nobody has seen ids of the new features.
    CHECK(!HasRow(store, 9, 1));
    CHECK(!HasRow(store, 9, 3));
  }
}

TEST(ASnapshotIsOfTheMomentWhenItWasBegun) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/saved";
  const TestStore store(Options(Kind::kCount, 3));
  HasRow(store, 1);
  CHECK_OK(store->BeginSave(path, directory.path(), store.executor()));
  HasRow(store, 1);
  SaveReport report;
  CHECK_OK(store->FinishSave("", &report));
  CHECK_EQ(report.rows, 0);
  CHECK_EQ(report.bytes, static_cast<int64_t>(
                             std::filesystem::file_size(path + "/ADMISSION")));
  CHECK_OK(Restore(store, path));
  CHECK(!HasRow(store, 1));
  CHECK(HasRow(store, 1));
}

TEST(CountsGoToAnotherAdmissionAsFarAsItCanUseThem) {
  const TemporaryDirectory directory;
  const auto restored = [&](Kind from, Kind to, int64_t min_count,
                            int64_t expected_keys) {
    static int number = 0;
    const std::string path = directory.path() + "/" + std::to_string(number++);
    const TestStore saved(Options(from, 10));
    CountSome(saved);
    saved.Save(path);
    StoreOptions options = Options(to, min_count);
    options.admission.probability = 1e-9;
    options.admission.expected_keys = expected_keys;
    auto store = std::make_unique<TestStore>(options);
    CHECK_OK(Restore(*store, path));
    if (to != Kind::kNone) CHECK(HasRow(*store, 20));
    return store;
  };
  for (const Kind kind : kCounting) {
    // Key 5 was seen five times.
    for (const Kind from : {Kind::kCount, kind}) {
      CHECK(HasRow(*restored(from, kind, 6, 1000), 5));
      CHECK(!HasRow(*restored(from, kind, 7, 1000), 5));
      CHECK(!HasRow(*restored(from, kind, 300, 1000), 5));
    }
  }
  // Of no use: they start anew.
  CHECK(!HasRow(*restored(Kind::kBloom, Kind::kCount, 6, 1000), 5));
  CHECK(!HasRow(*restored(Kind::kBloom, Kind::kBloom, 6, 2000), 5));
  CHECK(!HasRow(*restored(Kind::kCount, Kind::kProbability, 6, 1000), 5));
  CHECK(HasRow(*restored(Kind::kCount, Kind::kNone, 6, 1000), 5));
}

TEST(ASnapshotWithoutCountsStartsAnew) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/saved";
  const TestStore saved(SmallOptions(1));
  saved.Train(Keys({1}), {2.0f}, 0.5f);
  saved.Save(path);
  CHECK(!std::filesystem::exists(path + "/ADMISSION"));
  const TestStore store(Options(Kind::kCount, 2));
  CHECK(!HasRow(store, 5));
  CHECK_OK(Restore(store, path));
  CHECK_EQ(store.Read(Keys({1})), Floats{0.0f});
  CHECK(!HasRow(store, 5));
  CHECK(HasRow(store, 5));
}

TEST(ADamagedFileOfCountsIsNamedAndChangesNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/saved";
  const TestStore saved(Options(Kind::kCount, 10));
  CountSome(saved);
  saved.Save(path);
  const std::string file = path + "/ADMISSION";
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
  const TestStore store(Options(Kind::kCount, 10));
  store.Write(Keys({1}), {3.0f});
  for (int64_t offset = 0; offset < size; offset += 7) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const auto byte = static_cast<char>(stream.get());
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 4));
    stream.close();
    const Status status = Restore(store, path);
    CHECK_EQ(status.code(), StatusCode::kDataLoss);
    CHECK_CONTAINS(status.message(), "'" + file + "' is damaged");
    stream.open(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    stream.put(byte);
  }
  CHECK_EQ(store.Read(Keys({1})), Floats{3.0f});
  std::filesystem::resize_file(file, static_cast<uintmax_t>(size - 1));
  CHECK_EQ(Restore(store, path).code(), StatusCode::kDataLoss);
  std::filesystem::remove(file);
  const Status status = Restore(store, path);
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), file);
  // A table that admits every key does not look at it.
  CHECK_OK(Restore(TestStore(SmallOptions(1)), path));
}

TEST(CountsOfUnknownFeaturesAreRefused) {
  const TestStore store(Options(Kind::kCount, 10));
  CountSome(store);
  std::vector<char> bytes;
  CHECK_OK(store->ExportAdmission(store.executor(), &bytes));
  const TestStore other(Options(Kind::kCount, 10));
  const Status few = other->ImportAdmission(bytes, {0, 1}, other.executor());
  CHECK_EQ(few.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(few.message(),
                 "has counts of feature 2. Received: `features` "
                 "for 2 features.");
  const Status high =
      other->ImportAdmission(bytes, {0, 1, 3}, other.executor());
  CHECK_CONTAINS(high.message(), "must lie in [0, 3). Received: 3.");
  bytes.resize(20);
  const Status short_one =
      other->ImportAdmission(bytes, kFeatures, other.executor());
  CHECK_EQ(short_one.code(), StatusCode::kDataLoss);
  CHECK_CONTAINS(short_one.message(), "is no admission file of tfctr");
  CHECK(!HasRow(other, 20));
}

}  // namespace
}  // namespace tfctr
