#include "tfctr_ops/cc/store/fused_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;
using Floats = std::vector<float>;

// Adagrad: as many slots as weights.
constexpr int64_t kDim = 3, kFloats = 2 * kDim, kWidth = kFloats + 3;

struct Batch {
  explicit Batch(int64_t n)
      : rows(Random(1).Uniforms(n * kWidth, 0.1f, 1.0f)),
        gradients(Random(2).Uniforms(n * kDim, -1.0f, 1.0f)),
        n(n) {
    for (int64_t i = 0; i < n; ++i) {
      features.push_back(static_cast<int32_t>(i % 5));
      updates.push_back(static_cast<int32_t>(i % 7));
      samples.push_back(static_cast<int32_t>(i % 3));
    }
  }

  int64_t Update(const SparseOptimizer& optimizer, int threads, Floats* to) {
    ThreadExecutor executor(threads);
    to->assign(rows.size(), -9.0f);
    const FusedRows fused = {rows.data(), n, features.data(), updates.data(),
                             optimizer.clips() ? samples.data() : nullptr};
    return UpdateFusedRows(optimizer, {0.1f, 12}, kDim, fused, gradients.data(),
                           &executor, to->data());
  }

  const Floats rows, gradients;
  const int64_t n;
  std::vector<int32_t> features, updates, samples;
};

// Above 2048 rows there are several tasks, and above 64 several blocks of each.
const int64_t kSizes[] = {0, 1, 64, 65, 5003};

TEST(RowsMoveByTheFormulaAndCount) {
  SparseOptimizer adagrad;
  adagrad.kind = SparseOptimizer::Kind::kAdagrad;
  for (const int64_t n : kSizes) {
    Batch batch(n);
    Floats updated;
    CHECK_EQ(batch.Update(adagrad, 4, &updated), 0);
    for (int64_t i = 0; i < n; ++i) {
      const float* const before = batch.rows.data() + i * kWidth;
      const float* const after = updated.data() + i * kWidth;
      for (int64_t c = 0; c < kDim; ++c) {
        const float g = batch.gradients[static_cast<size_t>(i * kDim + c)];
        const float a = before[kDim + c] + g * g;
        CHECK(std::fabs(after[kDim + c] - a) < 1e-6f);
        const float w = before[c] - 0.1f * g / std::sqrt(a + 1e-7f);
        CHECK(std::fabs(after[c] - w) < 1e-6f);
      }
      int32_t counters[3];
      std::memcpy(counters, after + kFloats, sizeof(counters));
      CHECK_EQ(counters[0], i % 5);
      CHECK_EQ(counters[1], i % 7 + 1);
      CHECK_EQ(counters[2], 12);
    }
  }
}

TEST(ThreadsMakeNoDifference) {
  SparseOptimizer clipping;
  clipping.kind = SparseOptimizer::Kind::kAdagrad;
  clipping.clip_ratio = 1.0f;
  Batch batch(5003);
  Floats one, four;
  const int64_t clipped = batch.Update(clipping, 1, &one);
  CHECK_EQ(batch.Update(clipping, 4, &four), clipped);
  CHECK(0 < clipped && clipped < 5003);
  CHECK(std::memcmp(one.data(), four.data(), one.size() * 4) == 0);
}

}  // namespace
}  // namespace tfctr
