#include "tfctr_ops/cc/store/occurrences.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;
using Floats = std::vector<float>;

constexpr int64_t kDim = 5, kWidth = 7, kRows = 40;

std::vector<int32_t> SomePlaces(int64_t n) {
  Random random(static_cast<uint64_t>(n));
  std::vector<int32_t> places;
  for (int64_t i = 0; i < n; ++i) {
    places.push_back(static_cast<int32_t>(random.Below(kRows + 1)) - 1);
  }
  return places;
}

// Above 2048 places there are several tasks.
const int64_t kSizes[] = {0, 3, 2048, 9001};

TEST(WeightsAreCopiedToWhereRowsOccur) {
  const Floats rows = Random(2).Uniforms(kRows * kWidth, -1.0f, 1.0f);
  ThreadExecutor executor(4);
  for (const int64_t n : kSizes) {
    const std::vector<int32_t> places = SomePlaces(n);
    Floats gathered(static_cast<size_t>(n * kDim), -9.0f);
    CHECK_OK(GatherWeights({places.data(), n, kRows}, rows.data(), kWidth, kDim,
                           &executor, gathered.data()));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = places[static_cast<size_t>(i)];
      for (int64_t c = 0; c < kDim; ++c) {
        const float expected =
            place < 0 ? 0 : rows[static_cast<size_t>(place * kWidth + c)];
        CHECK_EQ(gathered[static_cast<size_t>(i * kDim + c)], expected);
      }
    }
  }
}

TEST(GradientsAreSummedInTheOrderOfTheBatch) {
  for (const int64_t n : kSizes) {
    const std::vector<int32_t> places = SomePlaces(n);
    const Floats gradients = Random(3).Uniforms(n * kDim, -1.0f, 1.0f);
    Floats expected(kRows * kDim, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = places[static_cast<size_t>(i)];
      for (int64_t c = 0; place >= 0 && c < kDim; ++c) {
        expected[static_cast<size_t>(place * kDim + c)] +=
            gradients[static_cast<size_t>(i * kDim + c)];
      }
    }
    for (const int num_threads : {1, 3}) {
      ThreadExecutor executor(num_threads);
      Floats sums(kRows * kDim, -9.0f);
      SumGradients({places.data(), n, kRows}, gradients.data(), kDim, &executor,
                   sums.data());
      CHECK_EQ(sums, expected);
    }
  }
}

TEST(APlaceOfNoRowIsRefused) {
  const Floats rows(6, 1.0f);
  Floats gathered(2);
  SerialExecutor executor;
  for (const int32_t place : {3, -2}) {
    const Status status = GatherWeights({&place, 1, 3}, rows.data(), 2, 2,
                                        &executor, gathered.data());
    const std::string expected =
        "Received: " + std::to_string(place) + ", of 3 rows.";
    CHECK(status.message().find(expected) != std::string::npos);
  }
}

}  // namespace
}  // namespace tfctr
