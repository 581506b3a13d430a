#include "tfctr_ops/cc/store/checksum.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"

namespace tfctr {
namespace {

using testing::Random;
using Bytes = std::vector<uint8_t>;

// Bit by bit, by the definition: the remainder of a division by the polynomial
// 0x1edc6f41, whose bits stand in reverse.
uint32_t SlowCrc32c(const Bytes& bytes) {
  uint32_t crc = 0xffffffffU;
  for (const uint8_t byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool is_odd = ((crc ^ (byte >> bit)) & 1) != 0;
      crc >>= 1;
      if (is_odd) crc ^= 0x82f63b78U;
    }
  }
  return ~crc;
}

uint32_t ChecksumOf(const Bytes& bytes) {
  return Crc32c(bytes.data(), static_cast<int64_t>(bytes.size()));
}

Bytes RandomBytes(int64_t size, uint64_t seed) {
  Random random(seed);
  Bytes bytes(static_cast<size_t>(size));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
  return bytes;
}

// RFC 3720, B.4; the last is the check value of the catalogues of CRCs.
TEST(PublishedExamplesHaveTheirChecksums) {
  Bytes increasing;
  for (uint8_t i = 0; i < 32; ++i) increasing.push_back(i);
  const Bytes decreasing(increasing.rbegin(), increasing.rend());
  const std::string digits = "123456789";
  CHECK_EQ(ChecksumOf(Bytes(32, 0x00)), 0x8a9136aaU);
  CHECK_EQ(ChecksumOf(Bytes(32, 0xff)), 0x62a8ab43U);
  CHECK_EQ(ChecksumOf(increasing), 0x46dd794eU);
  CHECK_EQ(ChecksumOf(decreasing), 0x113fdb5cU);
  CHECK_EQ(ChecksumOf(Bytes(digits.begin(), digits.end())), 0xe3069283U);
  CHECK_EQ(ChecksumOf({}), 0U);
}

TEST(EverySizeAtEveryAddressEqualsTheDefinition) {
  const Bytes all = RandomBytes(400, 1);
  for (int64_t start = 0; start < 9; ++start) {
    for (int64_t size = 0; size < 130; ++size) {
      const Bytes piece(all.begin() + start, all.begin() + start + size);
      CHECK_EQ(Crc32c(all.data() + start, size), SlowCrc32c(piece));
    }
  }
  const Bytes large = RandomBytes(100003, 2);
  CHECK_EQ(ChecksumOf(large), SlowCrc32c(large));
}

TEST(ChecksumsGoOnFromWhatWasBefore) {
  const Bytes bytes = RandomBytes(77, 3);
  for (int64_t size = 0; size <= 77; ++size) {
    const uint32_t before = Crc32c(bytes.data(), size);
    CHECK_EQ(Crc32c(bytes.data() + size, 77 - size, before), ChecksumOf(bytes));
  }
}

TEST(EveryFlippedBitShows) {
  Bytes bytes = RandomBytes(64, 4);
  const uint32_t right = ChecksumOf(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto flip = static_cast<uint8_t>(1U << (bit % 8));
    bytes[bit / 8] ^= flip;
    CHECK_NE(ChecksumOf(bytes), right);
    bytes[bit / 8] ^= flip;
  }
}

}  // namespace
}  // namespace tfctr
