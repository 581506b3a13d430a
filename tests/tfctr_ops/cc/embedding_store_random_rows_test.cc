// Thousands of random calls of a store equal the same calls of its model, where
// keys ask for a row, rows expire, or gradients are clipped.

#include <cstdint>
#include <functional>
#include <utility>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/many_locks.h"
#include "tests/tfctr_ops/cc/random_session.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

using testing::kNumCalls;
using testing::NewCase;
using testing::RandomCase;
using testing::RandomSession;
using testing::RunOverSsd;
using Change = std::function<void(StoreOptions*)>;

// In memory alone, and over an SSD tier with room for any number of rows.
void RunEverywhere(const Change& change, uint64_t seed,
                   bool has_counts = false) {
  const std::pair<int64_t, int> settings[] = {
      {-1, 1}, {-1, 4}, {0, 2}, {30, 1}, {30, 4}};  // Rows and threads.
  for (const auto& [ram_rows, num_threads] : settings) {
    RandomCase c = NewCase(SparseOptimizer::Kind::kAdagrad, 3, num_threads, 0);
    change(&c.options);
    c.num_threads = num_threads;
    c.has_counts = has_counts;
    if (ram_rows >= 0) {
      c.options.eviction_policy = EvictionPolicy::kClock;
      RunOverSsd(c, ram_rows, -1, seed++, kNumCalls / 3);
    } else {
      RandomSession(c, seed++).Run(kNumCalls);
    }
  }
}

TEST(AdmissionByCountEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 4;
      },
      200);
}

TEST(AdmissionByBloomFilterEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kBloom;
        options->admission.min_count = 4;
        // So large that no key is taken for another.
        options->admission.expected_keys = 20000;
        options->admission.false_positive_rate = 1e-7;
      },
      220);
}

TEST(AdmissionByProbabilityEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kProbability;
        options->admission.probability = 0.1;
      },
      240);
}

TEST(AFullStoreWithAdmissionEqualsTheModel) {
  for (const int64_t room : {0, 20, 80}) {
    RandomCase c = NewCase(SparseOptimizer::Kind::kAdagrad, 4, 2, 0);
    c.options.admission.kind = AdmissionOptions::Kind::kCount;
    c.options.admission.min_count = 3;
    c.room = room;
    c.num_threads = 2;
    RandomSession(c, 260).Run(kNumCalls);
  }
}

TEST(ExpiryEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {3, 10, 0.0, -1}; }, 300);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {2, -1, 0.6, -1}; }, 320);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {1, -1, 0.0, 25}; }, 340);
  RunEverywhere(
      [](StoreOptions* options) { options->expiry = {0, 20, 0.3, 40}; }, 360);
}

TEST(AdmissionAndExpiryTogetherEqualTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 3;
        options->expiry = {2, 15, 0.2, 30};
      },
      380);
}

// Of two weights, whose squares are summed in one order only.
void ClipTwoWeights(StoreOptions* options) {
  options->dim = 2;
  options->default_row.resize(2);
  options->optimizer.clip_ratio = 0.5f;
  options->optimizer.clip_floor = 0.1f;
  options->optimizer.l2_penalty = 0.01f;
}

TEST(ClippingEqualsTheModelToTheBit) {
  RunEverywhere(ClipTwoWeights, 400, /*has_counts=*/true);
}

TEST(ClippingWithAdmissionEqualsTheModelToTheBit) {
  RunEverywhere(
      [](StoreOptions* options) {
        ClipTwoWeights(options);
        options->admission.kind = AdmissionOptions::Kind::kCount;
        options->admission.min_count = 4;
      },
      440, /*has_counts=*/true);
}

}  // namespace
}  // namespace tfctr
