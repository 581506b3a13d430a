#include "tfctr_ops/cc/store/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/available_kernels.h"
#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"

namespace tfctr {
namespace {

using testing::AvailableKernels;
using testing::Random;

const int64_t kDims[] = {1, 3, 4, 8, 10, 16, 17, 32, 33, 64};

TEST(EveryProcessorHasTheBaseline) {
  CHECK(FindRowKernels("baseline") != nullptr);
  CHECK(FindRowKernels("sse9") == nullptr);
  CHECK(FindRowKernels("") == nullptr);
}

TEST(TheBestLevelIsOneThatTheProcessorHas) {
  CHECK(FindRowKernels(BestRowKernels().level) == &BestRowKernels());
}

TEST(CopyPutsEveryRowInItsPlaceAndTouchesNoOther) {
  Random random(14);
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const int64_t dim : kDims) {
      for (const int64_t n : {0, 1, 2, 16, 30}) {
        const std::vector<float> source = random.Uniforms(9 * dim, -1.0f, 1.0f);
        std::vector<int32_t> positions;
        for (int32_t i = 0; i < 40; ++i) positions.push_back(i);
        random.Shuffle(&positions);
        std::vector<float> expected(static_cast<size_t>(40 * dim), -7.0f);
        std::vector<float> got = expected;
        std::vector<const float*> from;
        for (int64_t i = 0; i < n; ++i) {
          from.push_back(source.data() + random.Below(9) * dim);
          std::copy_n(
              from.back(), dim,
              expected.begin() + positions[static_cast<size_t>(i)] * dim);
        }
        kernels->copy(from.data(), positions.data(), n, dim, got.data());
        CHECK_EQ(got, expected);
      }
    }
  }
}

TEST(AccumulateAddsInTheOrderGiven) {
  Random random(13);
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const int64_t dim : kDims) {
      for (const int64_t n : {0, 1, 2, 11, 12, 13, 100}) {
        const std::vector<float> gradients =
            random.Uniforms(150 * dim, -1.0f, 1.0f);
        std::vector<int32_t> positions;
        std::vector<int32_t> places;
        for (int64_t i = 0; i < n; ++i) {
          positions.push_back(static_cast<int32_t>(random.Below(150)));
          places.push_back(static_cast<int32_t>(random.Below(9)));
        }
        std::vector<float> expected = random.Uniforms(9 * dim, -1.0f, 1.0f);
        std::vector<float> got = expected;
        for (size_t i = 0; i < positions.size(); ++i) {
          for (int64_t c = 0; c < dim; ++c) {
            expected[static_cast<size_t>(places[i] * dim + c)] +=
                gradients[static_cast<size_t>(positions[i] * dim + c)];
          }
        }
        kernels->accumulate(gradients.data(), positions.data(), places.data(),
                            n, dim, got.data());
        CHECK_EQ(got, expected);
      }
    }
  }
}

TEST(AllWithinSeesABadValueAtEveryPosition) {
  constexpr float kBound = 100.0f;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::quiet_NaN(),
                              kInfinity,
                              -kInfinity,
                              std::nextafter(kBound, kInfinity),
                              -std::nextafter(kBound, kInfinity),
                              std::numeric_limits<float>::max()};
  for (const RowKernels* kernels : AvailableKernels()) {
    for (const size_t n : {0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 200}) {
      std::vector<float> values;
      for (size_t i = 0; i < n; ++i) {
        values.push_back(i % 3 == 0 ? kBound : i % 3 == 1 ? -kBound : 0.0f);
      }
      const auto size = static_cast<int64_t>(n);
      CHECK(kernels->all_within(values.data(), size, kBound));
      for (size_t i = 0; i < n; ++i) {
        const float good = values[i];
        for (const float bad : bad_values) {
          values[i] = bad;
          CHECK(!kernels->all_within(values.data(), size, kBound));
        }
        values[i] = good;
      }
    }
  }
}

}  // namespace
}  // namespace tfctr
