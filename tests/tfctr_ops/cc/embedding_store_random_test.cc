// Thousands of random calls of a store equal the same calls of its model, by
// every rule of update, within a budget and over an SSD tier.

#include <cstdint>

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
using Kind = SparseOptimizer::Kind;

TEST(SgdEqualsTheModelToTheBit) {
  RandomSession(NewCase(Kind::kSgd, 3, 0, 0), 1).Run(kNumCalls);
  RandomCase c = NewCase(Kind::kSgd, 1, 6, 0);
  c.num_threads = 3;
  RandomSession(c, 2).Run(kNumCalls);
}

TEST(AdagradEqualsTheModelToTheBit) {
  RandomCase c = NewCase(Kind::kAdagrad, 5, 3, 0);
  c.num_threads = 4;
  RandomSession(c, 3).Run(kNumCalls);
  c.options.skip_bad_gradients = true;
  c.num_threads = 1;
  RandomSession(c, 4).Run(kNumCalls);
}

TEST(AFullStoreEqualsTheModel) {
  for (const int64_t room : {0, 20, 80}) {
    RandomCase c = NewCase(Kind::kAdagrad, 4, 2, 0);
    c.room = room;
    c.num_threads = 2;
    RandomSession(c, 5).Run(kNumCalls);
  }
}

TEST(OverAnSsdTierTheTableEqualsTheModelToTheBit) {
  uint64_t seed = 100;
  for (const int64_t ram_rows : {0, 3, 30, 300, 20000}) {
    for (const int shard_bits : {0, 3}) {
      RandomCase c = NewCase(Kind::kAdagrad, 4, shard_bits, 0);
      c.options.eviction_policy = EvictionPolicy::kClock;
      RunOverSsd(c, ram_rows, -1, seed++);
      c.num_threads = 3;
      c.options.skip_bad_gradients = true;
      RunOverSsd(c, ram_rows, int64_t{64} << 20, seed++);
    }
  }
}

TEST(WhichRowsAreEvictedChangesNoTableOverAnSsdTier) {
  uint64_t seed = 200;
  for (const EvictionPolicy policy :
       {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    for (const int64_t ram_rows : {0, 30, 300}) {
      RandomCase c = NewCase(Kind::kAdagrad, 4, ram_rows == 30 ? 0 : 3, 0);
      c.options.eviction_policy = policy;
      c.num_threads = 2;
      RunOverSsd(c, ram_rows, int64_t{64} << 20, seed++);
    }
  }
}

// The rest rounds otherwise than the model, in each of the few hundred updates
// of a row.
constexpr double kTolerance = 1e-5;

TEST(RowwiseAdagradEqualsTheModel) {
  RandomSession(NewCase(Kind::kRowwiseAdagrad, 17, 3, kTolerance), 6)
      .Run(kNumCalls);
}

TEST(AdamEqualsTheModel) {
  RandomCase c = NewCase(Kind::kAdam, 2, 4, kTolerance);
  c.num_threads = 2;
  RandomSession(c, 7).Run(kNumCalls);
  c.options.optimizer.per_row_bias_correction = true;
  c.options.optimizer.weight_decay = 0.1f;
  c.options.optimizer.epsilon = 1e-3f;
  RandomSession(c, 8).Run(kNumCalls);
}

TEST(FtrlEqualsTheModel) {
  // The linear term sums numbers that are 1 / learning_rate times as large.
  RandomCase c = NewCase(Kind::kFtrl, 3, 1, 10 * kTolerance);
  RandomSession(c, 9).Run(kNumCalls);
  c.options.optimizer.l1 = 0.1f;
  c.options.optimizer.l2 = 0.2f;
  c.options.optimizer.l2_shrinkage = 0.05f;
  c.options.optimizer.beta = 0.5f;
  c.options.optimizer.learning_rate_power = -0.6f;
  c.num_threads = 2;
  RandomSession(c, 10).Run(kNumCalls);
}

}  // namespace
}  // namespace tfctr
