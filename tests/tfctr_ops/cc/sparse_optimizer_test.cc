// Every optimizer, as the row kernels of every CPU level apply it.

#include "tfctr_ops/cc/store/sparse_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
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
using Kind = SparseOptimizer::Kind;

const int64_t kDims[] = {1, 3, 4, 8, 10, 16, 17, 32, 33, 64};

struct NamedOptimizer {
  std::string name;
  SparseOptimizer optimizer;
};

std::vector<NamedOptimizer> Optimizers() {
  std::vector<NamedOptimizer> all;
  const auto add = [&](const char* name, Kind kind) -> SparseOptimizer& {
    all.push_back({name, {}});
    all.back().optimizer.kind = kind;
    return all.back().optimizer;
  };
  add("sgd", Kind::kSgd);
  add("sgd with weight decay", Kind::kSgd).weight_decay = 0.25f;
  add("adagrad", Kind::kAdagrad);
  add("adagrad with weight decay", Kind::kAdagrad).weight_decay = 0.25f;
  add("rowwise adagrad", Kind::kRowwiseAdagrad).epsilon = 0.125f;
  add("adam", Kind::kAdam);
  SparseOptimizer& adam_w = add("adam w", Kind::kAdam);
  adam_w.weight_decay = 0.01f;
  adam_w.beta_1 = 0.8;
  adam_w.beta_2 = 0.95;
  adam_w.epsilon = 0.01f;
  add("adam per row", Kind::kAdam).per_row_bias_correction = true;
  add("ftrl", Kind::kFtrl);
  SparseOptimizer& ftrl = add("ftrl with everything", Kind::kFtrl);
  ftrl.l1 = 0.5f;
  ftrl.l2 = 0.25f;
  ftrl.l2_shrinkage = 0.125f;
  ftrl.beta = 0.75f;
  ftrl.learning_rate_power = -0.7f;
  const std::vector<NamedOptimizer> plain = all;
  for (auto [name, optimizer] : plain) {
    optimizer.clip_ratio = 0.8f;
    optimizer.clip_floor = 0.5f;
    optimizer.l2_penalty = 0.25f;
    all.push_back({name + " after clipping", optimizer});
  }
  return all;
}

// The floats of one row, [weights | slots], as doubles. Of each float also the
// magnitude of the terms that were added up for it: rounding errors are
// relative to those.
struct ScalarRow {
  std::vector<double> floats;
  std::vector<double> magnitudes;
};

double Length(const float* values, size_t dim) {
  double squares = 0;
  for (size_t c = 0; c < dim; ++c) squares += double{values[c]} * values[c];
  return std::sqrt(squares);
}

// The gradient that the rest is made of: clipped, and with the L2 penalty.
std::vector<double> AdjustedGradient(const SparseOptimizer& o, int64_t count,
                                     const std::vector<float>& gradient,
                                     const std::vector<float>& row) {
  const size_t dim = gradient.size();
  double factor = 1;
  if (o.clips()) {
    const double length = Length(gradient.data(), dim);
    const double clip =
        static_cast<double>(count) *
        std::max<double>(o.clip_ratio * Length(row.data(), dim), o.clip_floor);
    if (length > clip) factor = clip / length;
  }
  const bool has_sample = !o.clips() || count > 0;
  const double strength = has_sample ? 2.0 * o.l2_penalty : 0.0;
  std::vector<double> adjusted;
  for (size_t c = 0; c < dim; ++c) {
    adjusted.push_back(factor * gradient[c] + strength * row[c]);
  }
  return adjusted;
}

// One update by the formulas in sparse_optimizer.h. `t` is what Adam corrects
// its bias by.
ScalarRow ScalarUpdate(const SparseOptimizer& o, double learning_rate, double t,
                       int64_t samples,
                       const std::vector<float>& summed_gradient,
                       const std::vector<float>& row) {
  const std::vector<double> gradient =
      AdjustedGradient(o, samples, summed_gradient, row);
  const size_t dim = gradient.size();
  ScalarRow out = {{row.begin(), row.end()}, std::vector<double>(row.size())};
  double mean_square = 0;
  for (const double g : gradient) {
    mean_square += g * g / static_cast<double>(dim);
  }
  if (o.kind == Kind::kRowwiseAdagrad) {
    out.floats[dim] += mean_square;
    out.magnitudes[dim] = out.floats[dim];
  }
  for (size_t c = 0; c < dim; ++c) {
    const double g = gradient[c];
    double& w = out.floats[c];
    double& w_magnitude = out.magnitudes[c];
    w -= learning_rate * o.weight_decay * w;
    double step = 0;
    switch (o.kind) {
      case Kind::kSgd:
        step = learning_rate * g;
        break;
      case Kind::kAdagrad: {
        double& a = out.floats[dim + c];
        a += g * g;
        out.magnitudes[dim + c] = a;
        step = learning_rate * g / std::sqrt(a + o.epsilon);
        break;
      }
      case Kind::kRowwiseAdagrad:
        step = learning_rate * g / std::sqrt(out.floats[dim] + o.epsilon);
        break;
      case Kind::kAdam: {
        double& m = out.floats[dim + c];
        double& v = out.floats[2 * dim + c];
        out.magnitudes[dim + c] = std::fabs(m) + std::fabs(g);
        out.magnitudes[2 * dim + c] = v + g * g;
        m += (1 - o.beta_1) * (g - m);
        v += (1 - o.beta_2) * (g * g - v);
        const double rate = learning_rate *
                            std::sqrt(1 - std::pow(o.beta_2, t)) /
                            (1 - std::pow(o.beta_1, t));
        step = rate * m / (std::sqrt(v) + o.epsilon);
        // m may be the small difference of greater numbers.
        w_magnitude = rate * out.magnitudes[dim + c] / std::sqrt(v);
        break;
      }
      case Kind::kFtrl: {
        double& n = out.floats[dim + c];
        double& z = out.floats[2 * dim + c];
        const double before = std::pow(n, -double{o.learning_rate_power});
        n += g * g;
        const double after = std::pow(n, -double{o.learning_rate_power});
        const double h = g + 2.0 * o.l2_shrinkage * w;
        const double z_magnitude =
            std::fabs(z) + std::fabs(h) + after / learning_rate * std::fabs(w);
        z += h - (after - before) / learning_rate * w;
        out.magnitudes[dim + c] = n;
        out.magnitudes[2 * dim + c] = z_magnitude;
        const double divisor =
            after / learning_rate + 2.0 * o.l2 + o.beta / learning_rate;
        w = (std::clamp<double>(z, -o.l1, o.l1) - z) / divisor;
        w_magnitude = z_magnitude / divisor;
        break;
      }
    }
    w_magnitude += std::fabs(w) + std::fabs(step);
    w -= step;
  }
  return out;
}

// Rows in memory as the store has them, with the gradients of one update.
struct Rows {
  Rows(const SparseOptimizer& optimizer, int64_t dim, int64_t n, uint64_t seed)
      : layout(dim, optimizer.NumSlotFloats(dim)),
        bytes(static_cast<size_t>(layout.row_bytes() * n)),
        gradients(Random(seed).Uniforms(n * dim, -2.0f, 2.0f)) {
    Random random(seed + 1);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i) order.push_back(i);
    random.Shuffle(&order);
    for (const int64_t i : order) {
      std::byte* row = bytes.data() + i * layout.row_bytes();
      RowHeader* header = new (row) RowHeader();
      header->id = i;
      header->feature = 3;
      header->live = 1;
      header->known = static_cast<uint32_t>(random.Below(2));
      header->count = static_cast<uint32_t>(header->known * random.Below(9));
      header->last_step = header->count;
      float* floats = RowLayout::Weights(row);
      // Weights of either sign; then slots, of which some must be positive.
      for (int64_t c = 0; c < layout.num_floats(); ++c) {
        floats[c] = random.Uniform(c < dim ? -1.0f : 0.125f, 1.0f);
      }
      counts.push_back(random.Below(4));
      pointers.push_back(row);
    }
  }

  std::vector<float> Floats(size_t i) const {
    const float* floats = RowLayout::Weights(pointers[i]);
    return {floats, floats + layout.num_floats()};
  }
  std::vector<float> GradientOf(size_t i) const {
    const auto dim = static_cast<size_t>(layout.dim());
    const float* gradient = gradients.data() + i * dim;
    return {gradient, gradient + dim};
  }
  RowHeader Header(size_t i) const { return *RowLayout::Header(pointers[i]); }

  int64_t Update(const RowKernels& kernels, const SparseOptimizer& optimizer,
                 const UpdateStep& step) {
    std::vector<int32_t> newly_dirty(pointers.size());
    std::vector<int32_t> clean;
    for (size_t i = 0; i < pointers.size(); ++i) {
      if (Header(i).dirty == 0) clean.push_back(static_cast<int32_t>(i));
    }
    const RowKernels::Changes changes = kernels.update(
        optimizer, step, layout.dim(), pointers.data(), gradients.data(),
        optimizer.clips() ? counts.data() : nullptr,
        static_cast<int64_t>(pointers.size()), newly_dirty.data());
    newly_dirty.resize(static_cast<size_t>(changes.num_newly_dirty));
    CHECK_EQ(newly_dirty, clean);
    return changes.newly_known;
  }

  RowLayout layout;
  std::vector<std::byte> bytes;
  std::vector<float> gradients;
  std::vector<int64_t> counts;       // Of samples.
  std::vector<std::byte*> pointers;  // In no order.
};

TEST(EveryOptimizerFollowsItsFormula) {
  for (const auto& [name, optimizer] : Optimizers()) {
    testing::RunningTest() = name.c_str();  // For the message.
    for (const int64_t dim : kDims) {
      for (const int64_t step_number : {1, 2, 1000, 1000000}) {
        const UpdateStep step = {0.05f, step_number};
        const Rows before(optimizer, dim, 21, 7);
        Rows after(optimizer, dim, 21, 7);
        after.Update(BestRowKernels(), optimizer, step);
        for (size_t i = 0; i < after.pointers.size(); ++i) {
          const double t = optimizer.per_row_bias_correction
                               ? before.Header(i).count + 1.0
                               : static_cast<double>(step.number);
          const ScalarRow expected =
              ScalarUpdate(optimizer, step.learning_rate, t, before.counts[i],
                           before.GradientOf(i), before.Floats(i));
          const std::vector<float> got = after.Floats(i);
          for (size_t c = 0; c < got.size(); ++c) {
            CHECK_NEAR(got[c], expected.floats[c],
                       1e-6 * expected.magnitudes[c]);
          }
        }
      }
    }
  }
}

TEST(AnUpdateStampsTheHeaders) {
  for (const auto& [name, optimizer] : Optimizers()) {
    const Rows before(optimizer, 5, 30, 8);
    Rows after(optimizer, 5, 30, 8);
    const int64_t newly_known =
        after.Update(BestRowKernels(), optimizer, {0.1f, 77});
    int64_t num_unknown = 0;
    for (size_t i = 0; i < after.pointers.size(); ++i) {
      const RowHeader was = before.Header(i);
      const RowHeader is = after.Header(i);
      num_unknown += !was.known;
      CHECK(is.known);
      CHECK_EQ(is.last_step, 77U);
      CHECK_EQ(is.count, was.count + 1);
      CHECK(is.Is(was.feature, was.id));
    }
    CHECK_EQ(newly_known, num_unknown);
  }
}

TEST(TheCountOfUpdatesStaysAtItsMaximum) {
  const SparseOptimizer sgd;
  Rows rows(sgd, 2, 1, 9);
  RowLayout::Header(rows.pointers[0])->count =
      std::numeric_limits<uint32_t>::max() - 1;
  for (int i = 0; i < 3; ++i) rows.Update(BestRowKernels(), sgd, {0.1f, 1});
  CHECK_EQ(rows.Header(0).count, std::numeric_limits<uint32_t>::max());
}

TEST(ALearningRateOfZeroMovesNoWeight) {
  for (const auto& [name, optimizer] : Optimizers()) {
    testing::RunningTest() = name.c_str();  // For the message.
    for (const int64_t dim : kDims) {
      const Rows before(optimizer, dim, 9, 15);
      Rows after(optimizer, dim, 9, 15);
      after.Update(BestRowKernels(), optimizer, {0.0f, 3});
      for (size_t i = 0; i < after.pointers.size(); ++i) {
        std::vector<float> was = before.Floats(i);
        std::vector<float> is = after.Floats(i);
        // Slots follow the gradient, except those of FTRL, which divide by the
        // learning rate.
        if (optimizer.kind != Kind::kFtrl) {
          was.resize(static_cast<size_t>(dim));
          is.resize(static_cast<size_t>(dim));
        }
        CHECK_EQ(is, was);
      }
    }
  }
}

TEST(AnUpdateOfNoRowsDoesNothing) {
  for (const auto& [name, optimizer] : Optimizers()) {
    Rows rows(optimizer, 4, 0, 10);
    CHECK_EQ(rows.Update(BestRowKernels(), optimizer, {0.1f, 1}), 0);
  }
}

TEST(EveryCpuLevelGivesTheSameBits) {
  const RowKernels& baseline = *FindRowKernels("baseline");
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const auto& [name, optimizer] : Optimizers()) {
      for (int64_t dim = 1; dim <= 70; ++dim) {
        Rows expected(optimizer, dim, 12, 11);
        Rows got(optimizer, dim, 12, 11);
        for (int64_t step = 1; step <= 3; ++step) {
          expected.Update(baseline, optimizer, {0.05f, step});
          got.Update(*kernels, optimizer, {0.05f, step});
        }
        CHECK(got.bytes == expected.bytes);
      }
    }
  }
}

TEST(RowwiseAdagradSumsSquaresOverTheWholeRow) {
  SparseOptimizer optimizer;
  optimizer.kind = Kind::kRowwiseAdagrad;
  optimizer.epsilon = 0.0f;
  for (const RowKernels* kernels : AvailableKernels()) {
    for (int64_t dim = 1; dim <= 200; ++dim) {
      Rows rows(optimizer, dim, 1, 12);
      // Small integers: every order of summation gives the same.
      double squares = 0;
      for (int64_t c = 0; c < dim; ++c) {
        const auto at = static_cast<size_t>(c);
        rows.gradients[at] = static_cast<float>(c % 7 - 3);
        squares += rows.gradients[at] * rows.gradients[at];
      }
      RowLayout::Weights(rows.pointers[0])[dim] = 0.0f;
      rows.Update(*kernels, optimizer, {0.05f, 1});
      CHECK_EQ(rows.Floats(0)[static_cast<size_t>(dim)],
               static_cast<float>(squares / static_cast<double>(dim)));
    }
  }
}

TEST(NewSlotsAreZeroOrTheInitialAccumulator) {
  const auto slots_of = [](Kind kind) {
    SparseOptimizer optimizer;
    optimizer.kind = kind;
    optimizer.initial_accumulator = 0.5f;
    std::vector<float> slots(static_cast<size_t>(optimizer.NumSlotFloats(3)),
                             -1.0f);
    optimizer.InitializeSlots(3, slots.data());
    return slots;
  };
  CHECK_EQ(slots_of(Kind::kSgd), std::vector<float>());
  CHECK_EQ(slots_of(Kind::kAdagrad), (std::vector<float>{0.5f, 0.5f, 0.5f}));
  CHECK_EQ(slots_of(Kind::kRowwiseAdagrad), std::vector<float>{0.5f});
  CHECK_EQ(slots_of(Kind::kAdam), std::vector<float>(6, 0.0f));
  CHECK_EQ(slots_of(Kind::kFtrl),
           (std::vector<float>{0.5f, 0.5f, 0.5f, 0.0f, 0.0f, 0.0f}));
}

}  // namespace
}  // namespace tfctr
