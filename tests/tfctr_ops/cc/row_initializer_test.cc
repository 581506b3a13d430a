#include "tfctr_ops/cc/store/row_initializer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"

namespace tfctr {
namespace {

using Kind = RowInitializer::Kind;
using testing::Random;

std::vector<float> Row(const RowInitializer& initializer, uint64_t seed,
                       int64_t id, int64_t dim) {
  std::vector<float> weights(static_cast<size_t>(dim));
  initializer.Fill(seed, id, dim, weights.data());
  return weights;
}

// Rows that were computed once from the formula in the header, by another
// program. They are frozen: models that are saved and exported depend on them.
struct GoldenRow {
  uint64_t seed;
  int64_t id;
  int32_t u[4];  // In units of 2^-24.
  double normal[4];
  double truncated_normal[4];
};
const GoldenRow kGoldenRows[] = {
    {0,
     0,
     {1, 11157083, 10043423, 10309427},
     {-5.294704085, 0.426186351, 0.249814663, 0.291040256},
     {-1.999998946, 0.405665465, 0.238225132, 0.277444055}},
    {1,
     0,
     {1003067, 13591587, 2094831, 12704399},
     {-1.556560347, 0.878344912, -1.151021683, 0.697455753},
     {-1.406301959, 0.827457485, -1.071685975, 0.660509841}},
    {0,
     1,
     {2287663, 12226069, 11007275, 5132967},
     {-1.096841510, 0.608978031, 0.401800890, -0.507366981},
     {-1.024069314, 0.577867474, 0.382575743, -0.482351706}},
    {42,
     -1,
     {389375, 7846727, 8105769, 11032837},
     {-1.991580387, -0.081049293, -0.042270623, 0.405944555},
     {-1.696425172, -0.077353989, -0.040346230, 0.386500840}},
    {std::numeric_limits<uint64_t>::max(),
     std::numeric_limits<int64_t>::max(),
     {5074171, 1414805, 15045963, 4963665},
     {-0.517383723, -1.376529053, 1.263578262, -0.536352464},
     {-0.491792547, -1.263292212, 1.168782447, -0.509656613}},
    {123456789,
     std::numeric_limits<int64_t>::min(),
     {1067119, 655001, 2620649, 10902581},
     {-1.525194878, -1.761923616, -1.010187002, 0.384900595},
     {-1.382159767, -1.554648917, -0.946896685, 0.366560348}},
};

TEST(UniformRowsAreTheGoldenOnesToTheBit) {
  for (const GoldenRow& golden : kGoldenRows) {
    const std::vector<float> unit =
        Row({Kind::kUniform, 0.0f, 1.0f}, golden.seed, golden.id, 4);
    // Powers of two scale without rounding: [-0.25, 0.25).
    const std::vector<float> scaled =
        Row({Kind::kUniform, -0.25f, 0.5f}, golden.seed, golden.id, 4);
    for (size_t c = 0; c < 4; ++c) {
      const double u = golden.u[c] * 0x1p-24;
      CHECK_EQ(static_cast<double>(unit[c]), u);
      CHECK_EQ(scaled[c], static_cast<float>(-0.25 + 0.5 * u));
    }
  }
}

TEST(NormalRowsAreTheGoldenOnes) {
  for (const GoldenRow& golden : kGoldenRows) {
    const std::vector<float> unit =
        Row({Kind::kNormal, 0.0f, 1.0f}, golden.seed, golden.id, 4);
    const std::vector<float> scaled =
        Row({Kind::kNormal, 3.0f, 0.5f}, golden.seed, golden.id, 4);
    for (size_t c = 0; c < 4; ++c) {
      CHECK_NEAR(unit[c], golden.normal[c], 1e-6);
      CHECK_NEAR(scaled[c], 3 + 0.5 * golden.normal[c], 1e-6);
    }
  }
}

TEST(TruncatedNormalRowsAreTheGoldenOnes) {
  for (const GoldenRow& golden : kGoldenRows) {
    const std::vector<float> unit =
        Row({Kind::kTruncatedNormal, 0.0f, 1.0f}, golden.seed, golden.id, 4);
    const std::vector<float> scaled =
        Row({Kind::kTruncatedNormal, -1.0f, 0.5f}, golden.seed, golden.id, 4);
    for (size_t c = 0; c < 4; ++c) {
      // Where the density is 0.054, p rounded to 2^-25 moves the quantile by
      // 6e-7.
      CHECK_NEAR(unit[c], golden.truncated_normal[c], 1.5e-6);
      CHECK_NEAR(scaled[c], -1 + 0.5 * golden.truncated_normal[c], 1.5e-6);
    }
  }
}

TEST(AConstantRowIsTheConstant) {
  CHECK_EQ(Row({Kind::kConstant, 0.25f, 0.0f}, 5, 6, 3),
           (std::vector<float>{0.25f, 0.25f, 0.25f}));
  CHECK_EQ(Row({Kind::kConstant, 0.0f, 0.0f}, 5, 6, 2),
           (std::vector<float>{0.0f, 0.0f}));
}

TEST(AWiderRowBeginsAsANarrowOne) {
  for (const Kind kind :
       {Kind::kUniform, Kind::kNormal, Kind::kTruncatedNormal}) {
    const RowInitializer initializer = {kind, 0.0f, 1.0f};
    const std::vector<float> wide = Row(initializer, 7, 8, 100);
    for (int64_t dim = 1; dim < 100; ++dim) {
      CHECK_EQ(Row(initializer, 7, 8, dim),
               std::vector<float>(wide.begin(), wide.begin() + dim));
    }
  }
}

struct Moments {
  double mean;
  double stddev;
  double least;
  double greatest;
};

constexpr int64_t kNumIds = 40000;
constexpr int64_t kDim = 5;
constexpr double kNumValues = kNumIds * kDim;

Moments MomentsOf(const RowInitializer& initializer) {
  double sum = 0;
  double squares = 0;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -least;
  for (int64_t id = 0; id < kNumIds; ++id) {
    for (const double value : Row(initializer, 99, id, kDim)) {
      sum += value;
      squares += value * value;
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  }
  const double mean = sum / kNumValues;
  return {mean, std::sqrt(squares / kNumValues - mean * mean), least, greatest};
}

TEST(UniformRowsFillTheirRangeEvenly) {
  const Moments m = MomentsOf({Kind::kUniform, -3.0f, 4.0f});
  const double stddev = 4 / std::sqrt(12.0);
  CHECK_NEAR(m.mean, -1, 5 * stddev / std::sqrt(kNumValues));
  CHECK_NEAR(m.stddev, stddev, 5 * stddev / std::sqrt(kNumValues));
  CHECK_GE(m.least, -3);
  CHECK_LE(m.greatest, 1);
  CHECK_LT(m.least, -3 + 40 / kNumValues);
  CHECK_GT(m.greatest, 1 - 40 / kNumValues);
}

TEST(UniformRowsFillSixteenBinsEvenly) {
  int64_t bins[16] = {};
  for (int64_t id = 0; id < kNumIds; ++id) {
    for (const float value : Row({Kind::kUniform, 0.0f, 16.0f}, 3, id, kDim)) {
      ++bins[static_cast<int>(value)];
    }
  }
  double chi_square = 0;
  for (const int64_t count : bins) {
    const double deviation = static_cast<double>(count) - kNumValues / 16;
    chi_square += deviation * deviation / (kNumValues / 16);
  }
  CHECK_LT(chi_square, 45);  // Of 15 degrees of freedom: p < 1e-4 beyond.
}

TEST(NormalRowsHaveTheirMeanAndDeviation) {
  const Moments m = MomentsOf({Kind::kNormal, 0.5f, 2.0f});
  CHECK_NEAR(m.mean, 0.5, 5 * 2 / std::sqrt(kNumValues));
  CHECK_NEAR(m.stddev, 2, 5 * 2 / std::sqrt(kNumValues));
  // The extremes of 200,000 draws lie about 4.5 deviations out.
  CHECK_LT(m.least, 0.5 - 4 * 2);
  CHECK_GT(m.greatest, 0.5 + 4 * 2);
}

TEST(TruncatedNormalRowsStayWithinTwoDeviations) {
  const Moments m = MomentsOf({Kind::kTruncatedNormal, 0.5f, 2.0f});
  // The deviation of a standard normal that is cut at -2 and 2.
  const double stddev = 2 * 0.8796256610342398;
  CHECK_NEAR(m.mean, 0.5, 5 * stddev / std::sqrt(kNumValues));
  CHECK_NEAR(m.stddev, stddev, 5 * stddev / std::sqrt(kNumValues));
  CHECK_GE(m.least, 0.5 - 4 - 1e-5);
  CHECK_LE(m.greatest, 0.5 + 4 + 1e-5);
  CHECK_LT(m.least, 0.5 - 4 + 1e-2);
  CHECK_GT(m.greatest, 0.5 + 4 - 1e-2);
}

double Correlation(const std::vector<float>& x, const std::vector<float>& y) {
  double xx = 0;
  double yy = 0;
  double xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {  // Both have mean 0.
    xx += static_cast<double>(x[i]) * x[i];
    yy += static_cast<double>(y[i]) * y[i];
    xy += static_cast<double>(x[i]) * y[i];
  }
  return xy / std::sqrt(xx * yy);
}

TEST(ColumnsIdsAndSeedsAreIndependent) {
  const RowInitializer initializer = {Kind::kUniform, -1.0f, 2.0f};
  constexpr int64_t kNumColumns = 18;
  // series[0 to 17]: the columns; then the first column of the next id and that
  // of the next seed.
  std::vector<std::vector<float>> series(kNumColumns + 2);
  for (int64_t id = 0; id < kNumIds; ++id) {
    const std::vector<float> row = Row(initializer, 11, id, kNumColumns);
    for (size_t c = 0; c < row.size(); ++c) series[c].push_back(row[c]);
    series[kNumColumns].push_back(Row(initializer, 11, id + 1, 1)[0]);
    series[kNumColumns + 1].push_back(Row(initializer, 12, id, 1)[0]);
  }
  for (size_t i = 0; i < series.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      CHECK_NEAR(Correlation(series[i], series[j]), 0,
                 5 / std::sqrt(static_cast<double>(kNumIds)));
    }
  }
}

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double QuantileByBisection(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (NormalCdf(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

void CheckQuantile(float p) {
  const double expected = QuantileByBisection(p);
  // Of absolute terms only where p = 0.5 gives 0.
  const double tolerance = 1e-6 * std::max(std::fabs(expected), 1e-6);
  CHECK_NEAR(NormalQuantile(p), expected, tolerance);
}

TEST(NormalQuantileInvertsTheNormalDistribution) {
  for (int i = 1; i < 4096; ++i) CheckQuantile(static_cast<float>(i) / 4096);
  Random random(1);
  for (int i = 0; i < 2000; ++i) CheckQuantile(random.Uniform(1e-6f, 1.0f));
}

TEST(NormalQuantileHoldsFarOut) {
  for (float p = 0.5f; p > 1e-37f; p *= 0.7f) CheckQuantile(p);
  for (float p = 0.5f; p >= 0x1p-24f; p /= 2) CheckQuantile(1.0f - p);
}

TEST(NormalQuantileHoldsWhereItsFormulasMeet) {
  // |p - 0.5| = 0.425, and p = exp(-25).
  for (const float border : {0.075f, 0.925f, 1.3887944e-11f}) {
    CheckQuantile(border);
    CheckQuantile(std::nextafter(border, 0.0f));
    CheckQuantile(std::nextafter(border, 1.0f));
  }
}

}  // namespace
}  // namespace tfctr
