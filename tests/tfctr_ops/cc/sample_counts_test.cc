#include "tfctr_ops/cc/store/sample_counts.h"

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;

TEST(CountsTheFirstOfEachKeyInASample) {
  Random random(1);
  ThreadExecutor executor(4);
  for (const int64_t n : {0, 3, 300, 30000}) {
    const std::vector<int32_t> features = {0, -1, 1};
    std::vector<int64_t> ids;
    std::vector<int32_t> samples;
    for (int64_t i = 0; i < n; ++i) {
      ids.push_back(random.Below(20) << 59);  // Some are negative.
      samples.push_back(static_cast<int32_t>(random.Below(n / 20 + 1)));
    }
    const KeyBatch batch = {ids.data(), n, features.data(), 3};
    std::vector<int32_t> counts(static_cast<size_t>(n), -1);
    CHECK_OK(CountSamples(batch, samples.data(), &executor, counts.data()));
    std::set<std::tuple<int32_t, int64_t, int32_t>> seen;
    for (size_t i = 0; i < counts.size(); ++i) {
      const int32_t feature = features[i % 3];
      const bool is_first =
          feature >= 0 && seen.insert({feature, ids[i], samples[i]}).second;
      CHECK_EQ(counts[i], is_first ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace tfctr
