// StoreModel: what a store should do, without threads, shards, slots or an
// index.

#ifndef TESTS_TFCTR_OPS_CC_STORE_MODEL_H_
#define TESTS_TFCTR_OPS_CC_STORE_MODEL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/hash.h"
#include "tfctr_ops/cc/store/store_options.h"

namespace tfctr {
namespace testing {

// Clips a gradient as sparse_optimizer.h says, and adds the L2 penalty; returns
// whether it was too long. In single precision, which gives the bits of the
// store for rows of one or two weights.
inline bool AdjustGradient(const SparseOptimizer& o, int64_t samples,
                           const std::vector<double>& row,
                           std::vector<float>* gradient) {
  float gradient_squares = 0;
  float weight_squares = 0;
  for (size_t c = 0; c < gradient->size(); ++c) {
    const auto w = static_cast<float>(row[c]);
    gradient_squares += (*gradient)[c] * (*gradient)[c];
    weight_squares += w * w;
  }
  const float length = std::sqrt(gradient_squares);
  const float clip =
      static_cast<float>(samples) *
      std::max(o.clip_ratio * std::sqrt(weight_squares), o.clip_floor);
  const bool is_too_long = o.clips() && length > clip;
  const bool has_sample = !o.clips() || samples > 0;
  for (size_t c = 0; c < gradient->size(); ++c) {
    if (is_too_long) (*gradient)[c] *= clip / length;
    if (has_sample) {
      (*gradient)[c] += 2 * o.l2_penalty * static_cast<float>(row[c]);
    }
  }
  return is_too_long;
}

// Moves a row [weights | slots] by the formulas in sparse_optimizer.h. SGD and
// Adagrad in single precision, which gives the bits of the store; the others in
// double precision.
inline void ScalarUpdate(const SparseOptimizer& o, float learning_rate,
                         int64_t step, int64_t count,
                         const std::vector<float>& gradient,
                         std::vector<double>* row) {
  const size_t dim = gradient.size();
  const double lr = learning_rate;
  double mean_square = 0;
  for (const double g : gradient) mean_square += g * g / gradient.size();
  if (o.kind == SparseOptimizer::Kind::kRowwiseAdagrad)
    (*row)[dim] += mean_square;
  for (size_t c = 0; c < dim; ++c) {
    const float g = gradient[c];
    const double g2 = static_cast<double>(g) * g;
    double& w = (*row)[c];
    double* slot = row->data() + dim + c;
    w -= lr * o.weight_decay * w;
    switch (o.kind) {
      case SparseOptimizer::Kind::kSgd:
        w = static_cast<float>(w) - learning_rate * g;
        break;
      case SparseOptimizer::Kind::kAdagrad: {
        const float a = static_cast<float>(*slot) + g * g;
        *slot = a;
        w = static_cast<float>(w) -
            learning_rate * g / std::sqrt(a + o.epsilon);
        break;
      }
      case SparseOptimizer::Kind::kRowwiseAdagrad:
        w -= lr * g / std::sqrt((*row)[dim] + o.epsilon);
        break;
      case SparseOptimizer::Kind::kAdam: {
        double& m = slot[0];
        double& v = slot[dim];
        m += (1 - o.beta_1) * (g - m);
        v += (1 - o.beta_2) * (g2 - v);
        const auto t =
            static_cast<double>(o.per_row_bias_correction ? count : step);
        w -= lr * std::sqrt(1 - std::pow(o.beta_2, t)) /
             (1 - std::pow(o.beta_1, t)) * m / (std::sqrt(v) + o.epsilon);
        break;
      }
      case SparseOptimizer::Kind::kFtrl: {
        double& n = slot[0];
        double& z = slot[dim];
        const double before = std::pow(n, -o.learning_rate_power);
        n += g2;
        const double after = std::pow(n, -o.learning_rate_power);
        z += g + 2.0 * o.l2_shrinkage * w - (after - before) / lr * w;
        w = (std::clamp<double>(z, -o.l1, o.l1) - z) /
            (after / lr + 2.0 * o.l2 + o.beta / lr);
        break;
      }
    }
  }
}

class StoreModel {
 public:
  struct Row {
    std::vector<double> floats;
    int64_t last_step = 0;
    int64_t count = 0;
    bool known = false;
  };

  // `room` is the number of rows that fit; negative without a limit.
  StoreModel(const StoreOptions& options, int64_t room)
      : options_(options), room_(room) {}

  // The weights that each key should read.
  std::vector<double> Read(const Keys& keys) {
    EndStep();
    std::vector<double> rows;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      const auto it = rows_.find(keys[i]);
      const bool is_known = it != rows_.end() && it->second.known;
      AppendWeights(keys[i],
                    is_known ? it->second.floats
                             : std::vector<double>(options_.default_row.begin(),
                                                   options_.default_row.end()),
                    &rows);
    }
    return rows;
  }

  // Whether the keys fit; if so they are inserted. A lookup `asks` admission:
  // keys that it refuses are counted, and stay out.
  bool TryInsert(const Keys& keys, bool asks = false) {
    EndStep();
    std::map<Key, int64_t> unseen;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      if (keys[i].first < 0 || rows_.count(keys[i]) > 0) continue;
      unseen[keys[i]] += keys.Count(i);
    }
    std::map<Key, int64_t> refused;
    for (auto it = unseen.begin(); asks && it != unseen.end();) {
      if (!Admits(it->first, it->second)) {
        refused.insert(*it);
        it = unseen.erase(it);
      } else {
        ++it;
      }
    }
    if (room_ >= 0 && !unseen.empty() && size() + Size(unseen) > room_) {
      return false;
    }
    for (const auto& [key, occurrences] : unseen) Insert(key);
    for (const auto& [key, occurrences] : refused) {
      refused_keys_ += occurrences;
      if (options_.admission.kind != AdmissionOptions::Kind::kProbability) {
        counts_[key] += occurrences;
      }
    }
    return true;
  }

  // The keys that have a row now; the others are absent.
  Keys Taken(const Keys& keys) const {
    Keys taken(keys.ids, {});
    taken.counts = keys.counts;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      taken.features.push_back(rows_.count(keys[i]) == 0 ? -1 : keys[i].first);
    }
    return taken;
  }

  std::vector<double> LookupInserted(const Keys& keys) const {
    std::vector<double> rows;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      const auto it = rows_.find(keys[i]);
      const std::vector<double> default_row(options_.default_row.begin(),
                                            options_.default_row.end());
      AppendWeights(keys[i],
                    it == rows_.end() ? default_row : it->second.floats, &rows);
    }
    return rows;
  }

  // Returns the number of the update.
  int64_t Report(int64_t sequence, const Keys& keys,
                 const std::vector<float>& gradient, float learning_rate) {
    if (drops_step_) return step_;
    if (reports_.empty()) ++step_;
    learning_rate_ = learning_rate;
    CHECK(reports_.emplace(sequence, std::make_pair(keys, gradient)).second);
    return step_;
  }

  // A bad gradient came: nothing of the open step is used.
  int64_t DropStep() {
    // After an error the number of the step stays used.
    if (!reports_.empty() && options_.skip_bad_gradients) --step_;
    reports_.clear();
    if (!drops_step_ && options_.skip_bad_gradients) ++skipped_;
    drops_step_ = true;
    return step_;
  }

  // Sums the gradients of every key, and moves its row once.
  void EndStep() {
    drops_step_ = false;
    const bool is_step = !reports_.empty();
    std::map<Key, std::vector<float>> sums;
    std::map<Key, int64_t> samples;
    for (const auto& [sequence, report] : reports_) {
      const auto& [keys, gradient] = report;
      for (size_t i = 0; i < keys.ids.size(); ++i) {
        if (keys[i].first < 0) continue;
        std::vector<float>& sum = sums[keys[i]];
        sum.resize(dim(), 0.0f);
        for (size_t c = 0; c < dim(); ++c) sum[c] += gradient[i * dim() + c];
        samples[keys[i]] += keys.Count(i);
      }
    }
    reports_.clear();
    for (auto& [key, sum] : sums) {
      if (rows_.count(key) == 0) Insert(key);
      Row& row = rows_[key];
      row.known = true;
      row.last_step = step_;
      ++row.count;
      ++updated_rows_;
      clipped_rows_ +=
          AdjustGradient(options_.optimizer, samples[key], row.floats, &sum);
      ScalarUpdate(options_.optimizer, learning_rate_, step_, row.count, sum,
                   &row.floats);
    }
    const int64_t every = options_.expiry.every;
    if (is_step && every > 0 && step_ % every == 0) ExpireNow();
  }

  int64_t Expire() {
    EndStep();
    return ExpireNow();
  }

  // REQUIRES: TryInsert(keys) was true.
  void Write(const Keys& keys, const std::vector<float>& weights) {
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      if (keys[i].first < 0) continue;
      Row& row = rows_.at(keys[i]);
      row.known = true;
      for (size_t c = 0; c < dim(); ++c) {
        row.floats[c] = weights[i * dim() + c];
      }
    }
  }

  int64_t Remove(const Keys& keys) {
    EndStep();
    int64_t removed = 0;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      admitted_.erase(keys[i]);
      // A filter cannot forget a key.
      if (options_.admission.kind == AdmissionOptions::Kind::kCount) {
        counts_.erase(keys[i]);
      }
      const auto it = rows_.find(keys[i]);
      if (it == rows_.end()) continue;
      removed += it->second.known;
      rows_.erase(it);
    }
    return removed;
  }

  // A store that is imported has neither unknown rows nor counts of its past,
  // unless those of admission go with it.
  void Import(bool with_admission) {
    for (auto it = rows_.begin(); it != rows_.end();) {
      if (!it->second.known) admitted_.insert(it->first);
      it = it->second.known ? std::next(it) : rows_.erase(it);
    }
    if (with_admission) return;
    admitted_.clear();
    counts_.clear();
  }
  void ForgetStats() {
    skipped_ = refused_keys_ = expired_rows_ = 0;
    updated_rows_ = clipped_rows_ = 0;
  }

  std::map<Key, Row> KnownRows() {
    EndStep();
    std::map<Key, Row> known;
    for (const auto& [key, row] : rows_) {
      if (row.known) known[key] = row;
    }
    return known;
  }

  // Whether the known rows would fit in place of all rows.
  bool CanImport() { return room_ < 0 || Size(KnownRows()) <= room_; }
  bool has_reports() const { return !reports_.empty(); }
  int64_t size() const { return Size(rows_); }
  int64_t step() const { return step_; }
  int64_t skipped() const { return skipped_; }
  int64_t refused_keys() const { return refused_keys_; }
  int64_t expired_rows() const { return expired_rows_; }
  int64_t updated_rows() const { return updated_rows_; }
  int64_t clipped_rows() const { return clipped_rows_; }

 private:
  template <typename Container>
  static int64_t Size(const Container& container) {
    return static_cast<int64_t>(container.size());
  }
  size_t dim() const { return static_cast<size_t>(options_.dim); }

  bool Admits(const Key& key, int64_t occurrences) const {
    const AdmissionOptions& admission = options_.admission;
    if (admitted_.count(key) > 0) return true;
    if (admission.kind == AdmissionOptions::Kind::kNone) return true;
    if (admission.kind == AdmissionOptions::Kind::kProbability) {
      const uint64_t word =
          Mix64((Mix64(SeedOf(key) ^ Mix64(static_cast<uint64_t>(key.second))) ^
                 0xbb67ae8584caa73bULL) +
                static_cast<uint64_t>(step_));
      const double draw = std::ldexp(static_cast<double>(word >> 11), -53);
      return draw >= std::pow(1 - admission.probability, occurrences);
    }
    const auto it = counts_.find(key);
    const int64_t before = it == counts_.end() ? 0 : it->second;
    return before + occurrences >= admission.min_count;
  }

  int64_t ExpireNow() {
    const ExpiryOptions& rule = options_.expiry;
    std::vector<std::tuple<int64_t, uint64_t, Key>> left;  // Oldest first.
    std::vector<Key> leave;
    for (const auto& [key, row] : rows_) {
      if (!row.known) continue;
      double square = 0;
      for (size_t c = 0; c < dim(); ++c)
        square += row.floats[c] * row.floats[c];
      if ((rule.unused_steps >= 0 &&
           step_ - row.last_step > rule.unused_steps) ||
          std::sqrt(square) < rule.min_norm) {
        leave.push_back(key);
      } else {
        const uint64_t tie =
            Mix64(SeedOf(key) ^ Mix64(static_cast<uint64_t>(key.second)));
        left.push_back({row.last_step, tie, key});
      }
    }
    std::sort(left.begin(), left.end());
    for (int64_t i = 0; rule.max_rows >= 0 && i < Size(left) - rule.max_rows;
         ++i) {
      leave.push_back(std::get<Key>(left[static_cast<size_t>(i)]));
    }
    for (const Key& key : leave) rows_.erase(key);
    expired_rows_ += Size(leave);
    return Size(leave);
  }

  uint64_t SeedOf(const Key& key) const {
    return options_.feature_seeds[static_cast<size_t>(key.first)];
  }

  void Insert(const Key& key) {
    admitted_.erase(key);
    if (options_.admission.kind == AdmissionOptions::Kind::kCount) {
      counts_.erase(key);
    }
    const SparseOptimizer& optimizer = options_.optimizer;
    std::vector<float> floats(
        dim() + static_cast<size_t>(optimizer.NumSlotFloats(options_.dim)));
    options_.initializer.Fill(
        options_.feature_seeds[static_cast<size_t>(key.first)], key.second,
        options_.dim, floats.data());
    optimizer.InitializeSlots(options_.dim, floats.data() + dim());
    rows_[key].floats.assign(floats.begin(), floats.end());
  }

  // Zeros for an absent key.
  void AppendWeights(const Key& key, std::vector<double> row,
                     std::vector<double>* rows) const {
    if (key.first < 0) row.assign(dim(), 0);
    rows->insert(rows->end(), row.begin(), row.begin() + options_.dim);
  }

  const StoreOptions options_;
  const int64_t room_;
  std::map<Key, Row> rows_;
  // Of keys without a row:
  std::map<Key, int64_t> counts_;
  std::set<Key> admitted_;  // Their rows were never updated.
  int64_t refused_keys_ = 0;
  int64_t expired_rows_ = 0;
  int64_t updated_rows_ = 0;
  int64_t clipped_rows_ = 0;
  std::map<int64_t, std::pair<Keys, std::vector<float>>>
      reports_;  // By sequence.
  float learning_rate_ = 0;
  int64_t step_ = 0;
  bool drops_step_ = false;
  int64_t skipped_ = 0;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_STORE_MODEL_H_
