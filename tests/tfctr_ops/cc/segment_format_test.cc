#include "tfctr_ops/cc/store/segment_format.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/segment_session.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {
namespace {

using testing::Bytes;
using testing::kSegmentCases;
using testing::OnDisk;
using testing::Random;
using testing::RandomRow;
using testing::SegmentSession;
using testing::TemporaryDirectory;

// ------ Layouts.

TEST(ASmallRowSharesAPageWithOthers) {
  // 24 + 16 bytes each; 24 bytes of every page are its header.
  const SegmentLayout layout(RowLayout(4, 0), 5 * 4096);
  CHECK_EQ(layout.row_bytes, 40);
  CHECK_EQ(layout.page_bytes, 4096);
  CHECK_EQ(layout.rows_per_page, 101);
  CHECK_EQ(layout.pages, 4);
  CHECK_EQ(layout.capacity(), 404);
  CHECK_EQ(layout.file_bytes(), 5 * 4096);
  CHECK_EQ(layout.RowOffset(0), 4096 + 24);
  CHECK_EQ(layout.RowOffset(1), 4096 + 64);
  CHECK_EQ(layout.RowOffset(101), 2 * 4096 + 24);
}

TEST(ALargeRowHasPagesOfSeveralSectors) {
  const SegmentLayout just_fits(RowLayout(1012, 0), 0);
  CHECK_EQ(just_fits.page_bytes, 4096);
  CHECK_EQ(just_fits.rows_per_page, 1);
  const SegmentLayout too_large(RowLayout(1013, 0), 0);
  CHECK_EQ(too_large.page_bytes, 8192);
  CHECK_EQ(too_large.rows_per_page, 2);
  CHECK_EQ(too_large.pages, 1);  // At least.
}

TEST(RowsNeitherOverlapNorCrossPages) {
  for (const int64_t dim : {1, 2, 7, 100, 333, 1011, 1012, 1013, 5000}) {
    const SegmentLayout layout(RowLayout(dim, 0), 300000);
    CHECK_LE(layout.file_bytes(), std::max<int64_t>(300000, 2 * 4096 * 5));
    int64_t end = layout.page_bytes;
    for (int64_t row = 0; row < layout.capacity(); ++row) {
      const int64_t offset = layout.RowOffset(row);
      CHECK_GE(offset, end);
      end = offset + layout.row_bytes;
      CHECK_EQ(offset / layout.page_bytes, (end - 1) / layout.page_bytes);
      CHECK_GE(offset % layout.page_bytes, 24);
      CHECK_EQ(layout.InPages(row), offset - layout.page_bytes);
    }
    CHECK_LE(end, layout.file_bytes());
  }
}

// ------ Checksums.

TEST(ARowIsOpenedAsItWasSealed) {
  Random random(1);
  const RowLayout layout(5, 3);
  const Bytes row = OnDisk(RandomRow(layout, &random));
  Bytes sealed = row;
  SealRow(sealed.data(), layout.row_bytes());
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    Bytes damaged = sealed;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    uint32_t stored = 0, computed = 0;
    CHECK(!OpenRow(damaged.data(), layout.row_bytes(), &stored, &computed));
    CHECK_NE(stored, computed);
  }
  uint32_t stored = 0, computed = 1;
  CHECK(OpenRow(sealed.data(), layout.row_bytes(), &stored, &computed));
  CHECK_EQ(stored, computed);
  CHECK(sealed == row);
}

TEST(ARowOfZerosIsNotARow) {
  Bytes row(48, std::byte{0});
  uint32_t stored, computed;
  CHECK(!OpenRow(row.data(), 48, &stored, &computed));
}

TEST(ADamagedPageIsNamedByFileAndOffset) {
  Random random(2);
  const SegmentLayout layout = kSegmentCases[0].layout();
  Bytes page(4096, std::byte{0});
  for (int64_t r = 0; r < 3; ++r) {
    const Bytes row = OnDisk(RandomRow(layout.rows, &random));
    std::copy(row.begin(), row.end(), page.begin() + layout.InPage(r));
  }
  SealPage(layout, 77, 5, 2, 3, page.data());
  CHECK_OK(CheckPage(layout, 2, "/a/file", page.data()));
  for (size_t bit = 0; bit < 8 * 4096; bit += 5) {
    Bytes damaged = page;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    const Status status = CheckPage(layout, 2, "/a/file", damaged.data());
    CHECK_EQ(status.code(), StatusCode::kDataLoss);
    CHECK_CONTAINS(status.message(), "'/a/file' is damaged at offset 12288");
  }
  // A good page in a wrong place.
  const Status status = CheckPage(layout, 3, "/a/file", page.data());
  CHECK_EQ(status.code(), StatusCode::kDataLoss);
  CHECK_CONTAINS(status.message(), "'/a/file' is damaged at offset 16384");
}

TEST(TheFirstPageTellsTheSizes) {
  const SegmentLayout layout = kSegmentCases[0].layout();
  Bytes page(4096, std::byte{0xaa});
  SealHeader(layout, 77, 5, page.data());
  SegmentHeader header;
  CHECK_OK(CheckHeader("/a/file", 4096, page.data(), &header));
  CHECK_EQ(header.segment, 77U);
  CHECK_EQ(header.shard, 5U);
  CHECK_EQ(header.page_bytes, 4096U);
  CHECK_EQ(header.row_bytes, 56U);
  CHECK_EQ(header.rows_per_page, 72U);
  CHECK_EQ(header.dim, 4U);
  CHECK_EQ(header.num_slot_floats, 4U);

  for (size_t byte = 0; byte < 4096; ++byte) {
    Bytes damaged = page;
    damaged[byte] ^= std::byte{0x10};
    const Status status = CheckHeader("/a/file", 4096, damaged.data(), &header);
    CHECK_CONTAINS(status.message(), "'/a/file'");
    CHECK_CONTAINS(status.message(), byte < 8    ? "is not a segment of tfctr"
                                     : byte < 12 ? "this tfctr reads version 1"
                                                 : "is damaged at offset 0");
    CHECK_EQ(status.code(), byte >= 8 && byte < 12
                                ? StatusCode::kInvalidArgument
                                : StatusCode::kDataLoss);
  }
}

// ------ Files.

template <typename T>
T Load(const Bytes& bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// Bit by bit, of a piece of the file whose own checksum stands at `field`.
uint32_t SlowChecksum(Bytes bytes, int64_t field) {
  std::fill_n(bytes.begin() + field, 4, std::byte{0});
  uint32_t crc = 0xffffffffU;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
    }
  }
  return ~crc;
}

// Every number by its place in the file, as another program would read it.
TEST(TheFileIsAsTheFormatSays) {
  const TemporaryDirectory directory;
  SegmentSession session({3, 2, 6 * 4096, 2}, directory.path(),
                         FileSystem::Posix());
  // 24 + 24 bytes a row, 84 in a page: two pages and a half.
  for (int i = 0; i < 84 * 2 + 42; ++i) session.Add();
  session.Seal();
  while (!session.to_write_.empty()) CHECK_OK(session.TryWrite());
  std::ifstream file(session.path_, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  CHECK_EQ(text.size(), size_t{4 * 4096});
  CHECK_EQ(text.substr(0, 8), "tfctrSEG");
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  const auto piece = [&](int64_t offset, int64_t size) {
    return Bytes(bytes.begin() + offset, bytes.begin() + offset + size);
  };
  CHECK_EQ(Load<uint32_t>(bytes, 8), 1U);  // The version.
  CHECK_EQ(Load<uint32_t>(bytes, 12), SlowChecksum(piece(0, 4096), 12));
  CHECK_EQ(Load<uint64_t>(bytes, 16), 4711U);  // The segment.
  const uint32_t numbers[] = {3, 4096, 48, 84, 3, 2};
  for (int i = 0; i < 6; ++i) {
    CHECK_EQ(Load<uint32_t>(bytes, 24 + 4 * i), numbers[i]);
  }
  for (int64_t page = 1; page <= 3; ++page) {
    const int64_t start = 4096 * page;
    const int64_t num_rows = page < 3 ? 84 : 42;
    CHECK_EQ(Load<uint32_t>(bytes, start), SlowChecksum(piece(start, 4096), 0));
    CHECK_EQ(Load<uint32_t>(bytes, start + 4), num_rows);
    CHECK_EQ(Load<uint32_t>(bytes, start + 8), 3U);  // The shard.
    CHECK_EQ(Load<uint32_t>(bytes, start + 12), page);
    CHECK_EQ(Load<uint64_t>(bytes, start + 16), 4711U);
    for (int64_t r = 0; r < num_rows; ++r) {
      Bytes row = piece(start + 24 + 48 * r, 48);
      CHECK_EQ(Load<uint32_t>(row, 20), SlowChecksum(row, 20));
      std::fill_n(row.begin() + 20, 4, std::byte{0});
      CHECK(row == session.rows_[static_cast<size_t>((page - 1) * 84 + r)]);
    }
    const Bytes rest =
        piece(start + 24 + 48 * num_rows, 4096 - 24 - 48 * num_rows);
    CHECK(rest == Bytes(rest.size(), std::byte{0}));
  }
}

}  // namespace
}  // namespace tfctr
