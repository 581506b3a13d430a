// TestStore: an EmbeddingStore in terms of vectors and maps, for tests.

#ifndef TESTS_TFCTR_OPS_CC_TEST_STORE_H_
#define TESTS_TFCTR_OPS_CC_TEST_STORE_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace testing {

using Key = std::pair<int32_t, int64_t>;  // (feature, id)

// Keys of a batch, with their arrays: key i is (features[i % p], ids[i]).
struct Keys {
  // Of the first feature, unless others are given.
  Keys(std::vector<int64_t> ids, std::vector<int32_t> features = {0})
      : ids(std::move(ids)), features(std::move(features)) {}

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  Key operator[](size_t i) const {
    return {features[i % features.size()], ids[i]};
  }
  int32_t Count(size_t i) const { return counts.empty() ? 1 : counts[i]; }
  operator KeyBatch() const {
    return {ids.data(), size(), features.data(),
            static_cast<int64_t>(features.size()),
            counts.empty() ? nullptr : counts.data()};
  }

  std::vector<int64_t> ids;
  std::vector<int32_t> features;
  std::vector<int32_t> counts;  // Empty: each once.
};

// The ids from `begin` to below `end`, of the first feature.
inline Keys Range(int64_t begin, int64_t end) {
  Keys keys(std::vector<int64_t>(static_cast<size_t>(end - begin)));
  std::iota(keys.ids.begin(), keys.ids.end(), begin);
  return keys;
}

// The bits of floats: equal only if the floats are, to the sign of a zero.
inline std::vector<uint32_t> BitsOf(const std::vector<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  if (!floats.empty()) {
    std::memcpy(bits.data(), floats.data(), floats.size() * sizeof(float));
  }
  return bits;
}

struct TableRow {
  std::vector<float> floats;  // Weights, then slots.
  int64_t last_step;
  int64_t count;

  // To the bit.
  bool operator==(const TableRow& other) const {
    return BitsOf(floats) == BitsOf(other.floats) &&
           last_step == other.last_step && count == other.count;
  }
};

inline std::ostream& operator<<(std::ostream& out, const TableRow& row) {
  return out << Show(row.floats) << ", last_step=" << row.last_step
             << ", count=" << row.count;
}

using Table = std::map<Key, TableRow>;

inline std::ostream& operator<<(std::ostream& out, const Table& table) {
  out << table.size() << " rows";
  for (const auto& [key, row] : table) {
    if (&row != &table.begin()->second && table.size() > 20) break;
    out << "\n    " << Show(key) << ": " << row;
  }
  return out;
}

constexpr EvictionPolicy kEvictionPolicies[] = {
    EvictionPolicy::kClock, EvictionPolicy::kLru, EvictionPolicy::kLfu};

inline std::shared_ptr<MemoryBudget> NoLimit() {
  return std::make_shared<MemoryBudget>(-1);
}

// Memory for so many rows.
inline std::shared_ptr<MemoryBudget> RoomFor(int64_t num_rows, int64_t dim = 1,
                                             int64_t num_slot_floats = 0) {
  const RowLayout layout(dim, num_slot_floats);
  return std::make_shared<MemoryBudget>(num_rows * layout.row_bytes());
}

// The same options with an SSD tier.
inline StoreOptions OverSsd(StoreOptions options, const std::string& directory,
                            FileSystem* files = FileSystem::Posix()) {
  options.eviction_policy = EvictionPolicy::kClock;
  options.ssd.directory = directory;
  options.ssd.files = files;
  return options;
}

// Three features, whose rows start as all ones.
inline StoreOptions SmallOptions(
    int64_t dim, SparseOptimizer::Kind kind = SparseOptimizer::Kind::kSgd) {
  StoreOptions options;
  options.name = "ads";
  options.dim = dim;
  options.optimizer.kind = kind;
  options.initializer = {RowInitializer::Kind::kConstant, 1.0f, 0.0f};
  options.feature_seeds = {101, 102, 103};
  options.default_row.assign(static_cast<size_t>(dim), 0.0f);
  options.shard_bits = 2;
  return options;
}

struct LookupResult {
  std::vector<float> rows;
  std::shared_ptr<Ticket> ticket;
};

// Thread safety: that of the store.
class TestStore {
 public:
  // `executor` must outlive the store.
  explicit TestStore(StoreOptions options,
                     std::shared_ptr<MemoryBudget> budget = NoLimit(),
                     Executor* executor = SerialOne())
      : executor_(executor) {
    CHECK_OK(
        EmbeddingStore::Create(std::move(options), std::move(budget), &store_));
  }

  EmbeddingStore& operator*() const { return *store_; }
  EmbeddingStore* operator->() const { return store_.get(); }
  Executor* executor() const { return executor_; }
  int64_t dim() const { return store_->layout().dim(); }

  std::vector<float> Read(const Keys& keys) const {
    std::vector<float> rows = RowsFor(keys);
    CHECK_OK(store_->Read(keys, executor_, rows.data()));
    return rows;
  }

  LookupResult Lookup(const Keys& keys) const {
    LookupResult result = {RowsFor(keys), nullptr};
    CHECK_OK(
        store_->Lookup(keys, executor_, result.rows.data(), &result.ticket));
    return result;
  }

  Status TryLookup(const Keys& keys) const {
    std::vector<float> rows = RowsFor(keys);
    std::shared_ptr<Ticket> ticket;
    return store_->Lookup(keys, executor_, rows.data(), &ticket);
  }

  // The gradient belongs to the store from here on, and to nobody else.
  Status TryUpdate(const std::shared_ptr<Ticket>& ticket,
                   std::vector<float> gradient, float learning_rate,
                   int64_t* step) const {
    CHECK_EQ(static_cast<int64_t>(gradient.size()), ticket->num_keys() * dim());
    auto owner = std::make_shared<std::vector<float>>(std::move(gradient));
    const float* values = owner->data();
    return store_->Update(ticket, {values, std::move(owner)}, learning_rate,
                          executor_, step);
  }

  int64_t Update(const std::shared_ptr<Ticket>& ticket,
                 std::vector<float> gradient, float learning_rate) const {
    int64_t step = -1;
    CHECK_OK(TryUpdate(ticket, std::move(gradient), learning_rate, &step));
    return step;
  }

  // A lookup and its update.
  int64_t Train(const Keys& keys, std::vector<float> gradient,
                float learning_rate) const {
    return Update(Lookup(keys).ticket, std::move(gradient), learning_rate);
  }

  void Write(const Keys& keys, const std::vector<float>& weights) const {
    CHECK_EQ(static_cast<int64_t>(weights.size()), keys.size() * dim());
    CHECK_OK(store_->Write(keys, weights.data(), executor_));
  }

  int64_t Remove(const Keys& keys) const {
    int64_t removed = -1;
    CHECK_OK(store_->Remove(keys, executor_, &removed));
    return removed;
  }

  Table Export() const {
    Arrays arrays(0, 0);
    int num_calls = 0;
    CHECK_OK(store_->Export(executor_, [&](int64_t n, RowArrays* rows) {
      ++num_calls;
      arrays = Arrays(n, store_->layout().num_floats());
      *rows = arrays.pointers();
      return Status::Ok();
    }));
    CHECK_EQ(num_calls, 1);
    Table table;
    for (size_t i = 0; i < arrays.ids.size(); ++i) {
      const auto floats =
          arrays.floats.begin() + static_cast<int64_t>(i) * arrays.num_floats;
      const TableRow row = {{floats, floats + arrays.num_floats},
                            arrays.last_steps[i],
                            arrays.counts[i]};
      CHECK(table.emplace(Key(arrays.features[i], arrays.ids[i]), row).second);
    }
    return table;
  }

  Status TryImport(const Table& table, int64_t step) const {
    const auto n = static_cast<int64_t>(table.size());
    Arrays arrays(n, store_->layout().num_floats());
    size_t i = 0;
    for (const auto& [key, row] : table) {
      CHECK_EQ(static_cast<int64_t>(row.floats.size()), arrays.num_floats);
      arrays.features[i] = key.first;
      arrays.ids[i] = key.second;
      arrays.last_steps[i] = row.last_step;
      arrays.counts[i] = row.count;
      std::copy(
          row.floats.begin(), row.floats.end(),
          arrays.floats.begin() + static_cast<int64_t>(i) * arrays.num_floats);
      ++i;
    }
    return store_->Import(n, arrays.pointers(), step, executor_);
  }

  void Import(const Table& table, int64_t step) const {
    CHECK_OK(TryImport(table, step));
  }

  SaveReport Save(const std::string& path,
                  const std::string& metadata = "") const {
    SaveReport report;
    CHECK_OK(store_->Save(path, metadata, executor_, &report));
    return report;
  }

  StoreStats Stats() const { return store_->Stats(executor_); }

 private:
  struct Arrays {
    Arrays(int64_t n, int64_t num_floats)
        : num_floats(num_floats),
          ids(static_cast<size_t>(n)),
          features(ids.size()),
          floats(static_cast<size_t>(n * num_floats)),
          last_steps(ids.size()),
          counts(ids.size()) {}

    RowArrays pointers() {
      return {ids.data(), features.data(), floats.data(), last_steps.data(),
              counts.data()};
    }

    int64_t num_floats;
    std::vector<int64_t> ids;
    std::vector<int32_t> features;
    std::vector<float> floats;
    std::vector<int64_t> last_steps;
    std::vector<int64_t> counts;
  };

  static Executor* SerialOne() {
    static SerialExecutor executor;
    return &executor;
  }

  // Not zeros, so that it shows if a row is left out.
  std::vector<float> RowsFor(const Keys& keys) const {
    return std::vector<float>(static_cast<size_t>(keys.size() * dim()),
                              -12345.0f);
  }

  std::shared_ptr<EmbeddingStore> store_;
  Executor* executor_;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_TEST_STORE_H_
