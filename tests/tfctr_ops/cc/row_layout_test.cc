#include "tfctr_ops/cc/store/row_layout.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"

namespace tfctr {
namespace {

TEST(ARowIsItsHeaderAndFloatsAndLittleMore) {
  for (int64_t dim = 1; dim < 100; ++dim) {
    const int64_t row_bytes = RowLayout(dim, dim).row_bytes();
    const int64_t needed = static_cast<int64_t>(sizeof(RowHeader)) + 8 * dim;
    CHECK_GE(row_bytes, needed);
    CHECK_LT(row_bytes, needed + 32);
    CHECK_EQ(row_bytes % static_cast<int64_t>(alignof(RowHeader)), 0);
  }
}

TEST(WeightsAndSlotsFollowTheHeaderWithinTheRow) {
  const RowLayout layout(3, 2);
  CHECK_EQ(layout.num_floats(), 5);
  std::vector<std::byte> bytes(static_cast<size_t>(layout.row_bytes()));
  const auto* weights =
      reinterpret_cast<const std::byte*>(RowLayout::Weights(bytes.data()));
  CHECK_GE(weights - bytes.data(), static_cast<int64_t>(sizeof(RowHeader)));
  CHECK_LE(weights - bytes.data() + 5 * 4, layout.row_bytes());
}

TEST(AHeaderTellsItsKeyFromOthers) {
  RowHeader header = {};
  header.id = -7;
  header.feature = kMaxFeatures - 1;
  CHECK(!header.Is(kMaxFeatures - 1, -7));  // Not live yet.
  header.live = 1;
  CHECK(header.Is(kMaxFeatures - 1, -7));
  CHECK(!header.Is(kMaxFeatures - 2, -7));
  CHECK(!header.Is(kMaxFeatures - 1, 7));
  CHECK(!header.Is(kMaxFeatures - 1, std::numeric_limits<int64_t>::max()));
}

}  // namespace
}  // namespace tfctr
