// StoreOptions: what a store is told when it is made.

#ifndef TFCTR_OPS_CC_STORE_STORE_OPTIONS_H_
#define TFCTR_OPS_CC_STORE_STORE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/hash.h"
#include "tfctr_ops/cc/store/numa_node.h"
#include "tfctr_ops/cc/store/row_initializer.h"
#include "tfctr_ops/cc/store/sparse_optimizer.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {

// What happens when the byte budget is used up.
enum class EvictionPolicy {
  kNone,  // New keys are an error.
  // Rows leave; see Eviction which.
  kClock,
  kLru,
  kLfu,
};

// Which keys get a row, of those that a training lookup finds without one.
struct AdmissionOptions {
  enum class Kind {
    kNone,         // All.
    kCount,        // Those seen `min_count` times, this batch included.
    kBloom,        // The same, counted by a CountingBloomFilter.
    kProbability,  // Each time a key is seen, with this probability.
  };
  Kind kind = Kind::kNone;
  int64_t min_count = 1;
  int64_t expected_keys = 1;
  double false_positive_rate = 0.01;
  double probability = 1.0;
};

// Which rows are removed, of those that were ever updated or written.
struct ExpiryOptions {
  int64_t every = 0;          // So many updates; 0: only when asked to.
  int64_t unused_steps = -1;  // Not updated for more updates; < 0: none is.
  double min_norm = 0.0;      // Weights with a lesser L2 norm.
  int64_t max_rows = -1;      // Those longest not updated, above so many.

  bool is_on() const {
    return unused_steps >= 0 || min_norm > 0 || max_rows >= 0;
  }
};

struct StoreOptions {
  std::string name;  // For messages.
  int64_t dim = 1;
  SparseOptimizer optimizer;
  RowInitializer initializer;
  // One per feature; with the id it determines the initial row.
  std::vector<uint64_t> feature_seeds;
  // What keys read that were never updated; dim floats.
  std::vector<float> default_row;
  EvictionPolicy eviction_policy = EvictionPolicy::kNone;
  // With a directory, rows that leave memory go there, and come back when they
  // are asked for. Needs an eviction policy.
  SsdOptions ssd;
  AdmissionOptions admission;
  ExpiryOptions expiry;
  // A step with a NaN, infinite or absurd gradient: skipped and counted, or an
  // error.
  bool skip_bad_gradients = false;
  // Shards are a power of two. Results do not depend on their number, unless
  // rows are evicted.
  int shard_bits = 6;
  // From which NUMA node the memory of rows and index comes.
  int64_t numa_node = kAnyNumaNode;

  // Of the hash that places keys; set when the store is made.
  uint64_t salt = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_STORE_OPTIONS_H_
