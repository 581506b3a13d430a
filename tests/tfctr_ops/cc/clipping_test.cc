// What the row kernels of every CPU level make of a gradient before the rest of
// an optimizer sees it: the clip of CowClip and the L2 penalty.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/available_kernels.h"
#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {
namespace {

using testing::AvailableKernels;
using testing::Random;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Outcome {
  Floats gradient;
  int64_t clipped;
};

SparseOptimizer Clipping(float ratio, float floor, float l2_penalty = 0.0f) {
  SparseOptimizer sgd;
  sgd.clip_ratio = ratio;
  sgd.clip_floor = floor;
  sgd.l2_penalty = l2_penalty;
  return sgd;
}

// The gradient of one row, as SGD of learning rate 0 finds it.
Outcome Clip(const RowKernels& kernels, const SparseOptimizer& optimizer,
             const Floats& weights, Floats gradient, int64_t count) {
  const auto dim = static_cast<int64_t>(weights.size());
  const RowLayout layout(dim, 0);
  std::vector<int64_t> memory(static_cast<size_t>(layout.row_bytes() / 8));
  auto* row = reinterpret_cast<std::byte*>(memory.data());
  std::copy(weights.begin(), weights.end(), RowLayout::Weights(row));
  int32_t newly_dirty;
  const RowKernels::Changes changes =
      kernels.update(optimizer, {0.0f, 1}, dim, &row, gradient.data(), &count,
                     1, &newly_dirty);
  return {gradient, changes.clipped};
}

float Length(const Floats& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return static_cast<float>(std::sqrt(squares));
}

TEST(TheGradientIsMadeAsLongAsTheCountTimesTheGreaterOfBoth) {
  for (const RowKernels* kernels : AvailableKernels()) {
    const Outcome by_ratio =
        Clip(*kernels, Clipping(0.5f, 1.0f), {6, 8}, {30, 40}, 2);
    CHECK_EQ(by_ratio.gradient, (Floats{6, 8}));
    CHECK_EQ(by_ratio.clipped, 1);
    const Outcome by_floor =
        Clip(*kernels, Clipping(0.5f, 10.0f), {6, 8}, {30, 40}, 2);
    CHECK_EQ(by_floor.gradient, (Floats{12, 16}));
    const Outcome short_enough =
        Clip(*kernels, Clipping(0.5f, 25.0f), {6, 8}, {30, 40}, 2);
    CHECK_EQ(short_enough.gradient, (Floats{30, 40}));
    CHECK_EQ(short_enough.clipped, 0);
  }
}

TEST(ThePenaltyComesAfterTheClip) {
  for (const RowKernels* kernels : AvailableKernels()) {
    const Outcome outcome =
        Clip(*kernels, Clipping(0.5f, 1.0f, 0.25f), {6, 8}, {30, 40}, 2);
    CHECK_EQ(outcome.gradient, (Floats{9, 12}));
    // It is there without a clip, too.
    CHECK_EQ(Clip(*kernels, Clipping(-1.0f, 0.0f, 0.25f), {6, 8}, {30, 40}, 2)
                 .gradient,
             (Floats{33, 44}));
  }
}

TEST(AnInfiniteRatioOrFloorClipsNothing) {
  const SparseOptimizer infinite[] = {Clipping(kInfinity, 0.0f),
                                      Clipping(kInfinity, kInfinity),
                                      Clipping(0.0f, kInfinity)};
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const SparseOptimizer& optimizer : infinite) {
      for (const Floats& weights : {Floats{0, 0}, Floats{1e-30f, 3}}) {
        for (const Floats& gradient : {Floats{0, 0}, Floats{1e18f, -1}}) {
          const Outcome outcome =
              Clip(*kernels, optimizer, weights, gradient, 1);
          CHECK_EQ(outcome.gradient, gradient);
          CHECK_EQ(outcome.clipped, 0);
        }
      }
    }
  }
}

TEST(ACountOfZeroLeavesNoGradient) {
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const float ratio : {0.0f, 1.0f, kInfinity}) {
      for (const float floor : {0.0f, 1.0f, kInfinity}) {
        const SparseOptimizer optimizer = Clipping(ratio, floor);
        const Outcome outcome = Clip(*kernels, optimizer, {0, 5}, {3, 4}, 0);
        CHECK_EQ(outcome.gradient, (Floats{0, 0}));
        CHECK_EQ(outcome.clipped, 1);
        // Zero by zero.
        const Outcome of_zero = Clip(*kernels, optimizer, {0, 5}, {0, 0}, 0);
        CHECK_EQ(of_zero.gradient, (Floats{0, 0}));
        CHECK_EQ(of_zero.clipped, 0);
      }
    }
  }
}

TEST(NothingPenalizesARowWithoutASample) {
  for (const RowKernels* kernels : AvailableKernels()) {
    const SparseOptimizer clipping = Clipping(0.5f, 1.0f, 0.25f);
    CHECK_EQ(Clip(*kernels, clipping, {6, 8}, {30, 40}, 0).gradient,
             (Floats{0, 0}));
    // Without a clip nobody counts.
    const SparseOptimizer plain = Clipping(-1.0f, 0.0f, 0.25f);
    CHECK_EQ(Clip(*kernels, plain, {6, 8}, {30, 40}, 0).gradient,
             (Floats{33, 44}));
  }
}

TEST(AGradientOfZerosStaysSo) {
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const float floor : {0.0f, 1.0f}) {
      const Outcome outcome =
          Clip(*kernels, Clipping(1.0f, floor), {0, 0}, {0, 0}, 7);
      CHECK_EQ(outcome.gradient, (Floats{0, 0}));
      CHECK_EQ(outcome.clipped, 0);
    }
  }
}

TEST(AGradientWhoseSquaresOverflowGivesNoNaN) {
  for (const RowKernels* kernels : AvailableKernels()) {
    const Floats gradient(3, 1e30f);
    CHECK_EQ(
        Clip(*kernels, Clipping(1.0f, 1.0f), {1, 2, 3}, gradient, 1).gradient,
        (Floats{0, 0, 0}));
    CHECK_EQ(Clip(*kernels, Clipping(1.0f, kInfinity), {1, 2, 3}, gradient, 1)
                 .gradient,
             gradient);
  }
}

TEST(EveryWidthGetsTheSameBitsFromEveryCpuLevel) {
  Random random(3);
  const RowKernels& baseline = *FindRowKernels("baseline");
  for (int64_t dim = 1; dim <= 70; ++dim) {
    const SparseOptimizer optimizer = Clipping(0.1f, 1e-3f, 0.01f);
    const Floats weights = random.Uniforms(dim, -1.0f, 1.0f);
    const Floats gradient = random.Uniforms(dim, -9.0f, 9.0f);
    const Outcome expected = Clip(baseline, optimizer, weights, gradient, 3);
    CHECK_EQ(expected.clipped, 1);
    for (const RowKernels* kernels : AvailableKernels()) {
      CHECK_EQ(Clip(*kernels, optimizer, weights, gradient, 3).gradient,
               expected.gradient);
    }
  }
}

TEST(LengthsAreOfTheWholeRowAndOfNothingElse) {
  for (const RowKernels* kernels : AvailableKernels()) {
    for (int64_t dim = 1; dim <= 70; ++dim) {
      for (size_t at = 0; at < static_cast<size_t>(dim); ++at) {
        Floats weights(static_cast<size_t>(dim), 0.0f);
        Floats gradient = weights;
        weights[at] = -2.0f;
        gradient[weights.size() - 1 - at] = 8.0f;
        const Outcome outcome =
            Clip(*kernels, Clipping(1.0f, 0.0f), weights, gradient, 2);
        CHECK_EQ(Length(outcome.gradient), 4.0f);
        CHECK_EQ(outcome.gradient[weights.size() - 1 - at], 4.0f);
      }
    }
  }
}

}  // namespace
}  // namespace tfctr
