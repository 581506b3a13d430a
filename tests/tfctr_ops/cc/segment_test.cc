#include "tfctr_ops/cc/store/segment.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/segment_format.h"

namespace tfctr {
namespace {

using testing::FaultyFileSystem;
using testing::Random;
using testing::TemporaryDirectory;
using Bytes = std::vector<std::byte>;
using Chunk = std::shared_ptr<Segment::Chunk>;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

// ------ Rows and layouts.

// A row as it may stand in memory: with what only memory needs.
Bytes RandomRow(const RowLayout& layout, Random* random) {
  Bytes row(static_cast<size_t>(layout.row_bytes()));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random->Below(256));
  RowHeader* header = RowLayout::Header(row.data());
  header->known = 1;
  header->live = 1;
  return row;
}

// The same without it.
Bytes OnDisk(Bytes row) {
  RowHeader* header = RowLayout::Header(row.data());
  header->score = 0;
  header->dirty = 0;
  header->mark = 0;
  return row;
}

struct Case {
  int64_t dim;
  int64_t num_slot_floats;
  int64_t segment_bytes;
  int64_t chunk_pages;

  SegmentLayout layout() const {
    return SegmentLayout(RowLayout(dim, num_slot_floats), segment_bytes);
  }
};

const Case kCases[] = {
    {4, 4, 5 * 4096, 1},     {1, 0, 5 * 4096, 2},   {3, 0, 9 * 4096, 3},
    {900, 0, 8 * 4096, 2},   {1012, 0, 40960, 4},   {1013, 0, 7 * 8192, 1},
    {64, 129, 11 * 4096, 5}, {8, 16, 6 * 4096, 99},
};

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
  const SegmentLayout layout = kCases[0].layout();
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
  const SegmentLayout layout = kCases[0].layout();
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

// ------ Segments.

// A segment, what should be in it, and the chunks that wait to be written.
class Session {
 public:
  Session(const Case& c, const std::string& directory, FileSystem* files,
          int64_t limit_bytes = -1)
      : layout_(c.layout()),
        path_(directory + "/segment"),
        usage_(std::make_shared<DiskUsage>(limit_bytes)),
        random_(static_cast<uint64_t>(c.dim)) {
    CHECK_OK(Segment::Create(files, layout_, c.chunk_pages, path_, 4711, 3,
                             usage_, 0, &segment_));
    CHECK(segment_ != nullptr);
    CHECK_EQ(segment_->number(), 4711U);
    CHECK_EQ(segment_->path(), path_);
    chunk_pages_ = std::min(c.chunk_pages, layout_.pages);
  }

  void Add() {
    CHECK(segment_->MakeRoom(0));
    const Bytes row = RandomRow(layout_.rows, &random_);
    CHECK_EQ(segment_->Add(row.data(), 0, false), num_rows());
    rows_.push_back(OnDisk(row));
    live_.insert(num_rows() - 1);
    if (Chunk chunk = segment_->TakeFullChunk()) to_write_.push_back(chunk);
    CHECK_EQ(segment_->num_rows(), num_rows());
    CHECK_EQ(segment_->is_full(), num_rows() == layout_.capacity());
  }

  void Seal() {
    CHECK(!segment_->is_sealed());
    if (Chunk chunk = segment_->Seal()) to_write_.push_back(chunk);
    CHECK(segment_->is_sealed());
    CHECK(segment_->Seal() == nullptr);
  }

  Status TryWrite() {
    const Status status = segment_->Write(*to_write_.front());
    to_write_.pop_front();
    return status;
  }

  void ClearOne() {
    const int64_t row = random_.Below(num_rows());
    if (live_.erase(row) == 1) segment_->ClearLive(row, 0, false);
  }

  // The row from memory or from the file.
  void CheckRow(int64_t row) {
    Bytes bytes(static_cast<size_t>(layout_.row_bytes));
    if (!segment_->CopyFromMemory(row, bytes.data())) {
      CHECK_OK(segment_->Read(layout_.RowOffset(row), layout_.row_bytes,
                              bytes.data()));
      uint32_t stored, computed;
      CHECK(OpenRow(bytes.data(), layout_.row_bytes, &stored, &computed));
      ++num_read_;
    }
    CHECK(bytes == rows_[static_cast<size_t>(row)]);
  }

  void CheckAll() {
    CHECK_EQ(segment_->num_live(), static_cast<int64_t>(live_.size()));
    for (int64_t row = 0; row < num_rows(); ++row) {
      CHECK_EQ(segment_->is_live(row), live_.count(row) == 1);
      CheckRow(row);
    }
    CHECK_EQ(segment_->is_written(), to_write_.empty() && !HasOpenChunk());
    const auto real = std::filesystem::file_size(path_);
    CHECK_LE(static_cast<int64_t>(real), usage_->used_bytes());
    CHECK_EQ(usage_->used_bytes(), ReservedBytes());
  }

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  Segment* operator->() const { return segment_.get(); }
  void Destroy() { segment_.reset(); }

  const SegmentLayout layout_;
  const std::string path_;
  const std::shared_ptr<DiskUsage> usage_;
  Random random_;
  int64_t chunk_pages_;
  std::shared_ptr<Segment> segment_;
  std::vector<Bytes> rows_;
  std::set<int64_t> live_;
  std::deque<Chunk> to_write_;
  int64_t num_read_ = 0;

 private:
  int64_t UsedPages() const {
    return (num_rows() + layout_.rows_per_page - 1) / layout_.rows_per_page;
  }
  bool HasOpenChunk() const {
    return !segment_->is_sealed() && !segment_->is_full() &&
           num_rows() % (chunk_pages_ * layout_.rows_per_page) != 0;
  }
  // The first page, and whole chunks until the segment is sealed.
  int64_t ReservedBytes() const {
    int64_t pages = UsedPages();
    if (!segment_->is_sealed()) {
      pages = (pages + chunk_pages_ - 1) / chunk_pages_ * chunk_pages_;
    }
    return (1 + std::min(pages, layout_.pages)) * layout_.page_bytes;
  }
};

TEST(RowsComeBackToTheBitFromMemoryAndFromTheFile) {
  for (const Case& c : kCases) {
    const TemporaryDirectory directory;
    Session session(c, directory.path(), FileSystem::Posix());
    const int64_t capacity = session.layout_.capacity();
    while (session.num_rows() < capacity) {
      session.Add();
      // The writer is behind, now more, now less.
      while (static_cast<int64_t>(session.to_write_.size()) >
             session.random_.Below(3)) {
        CHECK_OK(session.TryWrite());
      }
      if (session.random_.Below(3) == 0) session.ClearOne();
      session.CheckRow(session.random_.Below(session.num_rows()));
      if (session.num_rows() % (capacity / 4 + 1) == 0) session.CheckAll();
    }
    session.Seal();
    while (!session.to_write_.empty()) CHECK_OK(session.TryWrite());
    session.num_read_ = 0;
    session.CheckAll();
    CHECK_EQ(session.num_read_, capacity);
    CHECK_EQ(static_cast<int64_t>(std::filesystem::file_size(session.path_)),
             session.layout_.file_bytes());
  }
}

TEST(ASegmentMayBeSealedAtAnyRow) {
  for (const Case& c : kCases) {
    const int64_t capacity = c.layout().capacity();
    for (const int64_t num_rows :
         {int64_t{0}, int64_t{1}, c.layout().rows_per_page,
          c.chunk_pages * c.layout().rows_per_page, capacity / 2, capacity - 1,
          capacity}) {
      const TemporaryDirectory directory;
      Session session(c, directory.path(), FileSystem::Posix());
      while (session.num_rows() < std::min(num_rows, capacity)) session.Add();
      session.CheckAll();
      session.Seal();
      session.CheckAll();
      while (!session.to_write_.empty()) CHECK_OK(session.TryWrite());
      session.CheckAll();
      CHECK_EQ(session.num_read_, session.num_rows());
      // What was reserved and not needed is given back.
      const auto real = std::filesystem::file_size(session.path_);
      if (num_rows > 0) {
        CHECK_EQ(static_cast<int64_t>(real), session.usage_->used_bytes());
      }
    }
  }
}

TEST(PagesInMemoryHoldTheSameRows) {
  const TemporaryDirectory directory;
  Session session(kCases[2], directory.path(), FileSystem::Posix());
  const SegmentLayout& layout = session.layout_;
  while (session.num_rows() < layout.capacity() - 1) session.Add();
  Bytes page(static_cast<size_t>(layout.page_bytes));
  for (int64_t row = 0; row < session.num_rows(); ++row) {
    session->CopyPageFromMemory(row / layout.rows_per_page, page.data());
    const auto at = page.begin() + layout.InPage(row);
    CHECK(std::equal(at, at + layout.row_bytes,
                     session.rows_[static_cast<size_t>(row)].begin()));
  }
}

TEST(DirectReadsGiveTheSameBytes) {
  const TemporaryDirectory directory;
  Session session(kCases[5], directory.path(), FileSystem::Posix());
  const int64_t size = session.layout_.file_bytes();
  while (session.num_rows() < session.layout_.capacity()) session.Add();
  while (!session.to_write_.empty()) CHECK_OK(session.TryWrite());
  Bytes buffered(static_cast<size_t>(size));
  CHECK_OK(session->Read(0, size, buffered.data()));
  const AlignedBytes direct(size);
  for (int i = 0; i < 2; ++i) {  // The file is opened once.
    const Status status = session->ReadDirect(0, size, direct.data());
    if (!status.ok()) {  // Not every file system can.
      CHECK_CONTAINS(status.message(), session.path_);
      return;
    }
    CHECK(std::equal(buffered.begin(), buffered.end(), direct.data()));
  }
}

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
  Session session({3, 2, 6 * 4096, 2}, directory.path(), FileSystem::Posix());
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

TEST(ASegmentTakesItsFileAndItsRoomWithIt) {
  const TemporaryDirectory directory;
  Session session(kCases[0], directory.path(), FileSystem::Posix());
  for (int i = 0; i < 100; ++i) session.Add();
  CHECK_OK(session.TryWrite());
  CHECK(std::filesystem::exists(session.path_));
  CHECK_EQ(session.usage_->used_bytes(), 3 * 4096);
  session.Destroy();
  CHECK(!std::filesystem::exists(session.path_));
  CHECK_EQ(session.usage_->used_bytes(), 0);
}

TEST(WithoutRoomThereIsNoSegmentAndNoError) {
  const TemporaryDirectory directory;
  const SegmentLayout layout = kCases[0].layout();
  const auto usage = std::make_shared<DiskUsage>(10 * 4096);
  std::shared_ptr<Segment> segment;
  CHECK_OK(Segment::Create(FileSystem::Posix(), layout, 1,
                           directory.path() + "/segment", 1, 0, usage,
                           10 * 4096 - 4095, &segment));
  CHECK(segment == nullptr);
  CHECK_EQ(usage->used_bytes(), 0);
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST(AFileThatCannotBeMadeTakesNoRoom) {
  const TemporaryDirectory directory;
  const SegmentLayout layout = kCases[0].layout();
  const auto usage = std::make_shared<DiskUsage>(-1);
  std::shared_ptr<Segment> segment;
  const std::string path = directory.path() + "/none/segment";
  const Status status = Segment::Create(FileSystem::Posix(), layout, 1, path, 1,
                                        0, usage, 0, &segment);
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), path);
  CHECK(segment == nullptr);
  CHECK_EQ(usage->used_bytes(), 0);
}

TEST(AtTheLimitASegmentTakesNoMoreChunks) {
  const TemporaryDirectory directory;
  // The first page and three more.
  Session session(kCases[0], directory.path(), FileSystem::Posix(), 4 * 4096);
  const int64_t rows_per_page = session.layout_.rows_per_page;
  while (session.num_rows() < 2 * rows_per_page) session.Add();
  CHECK(!session->MakeRoom(/*spare=*/1));
  CHECK_EQ(session.usage_->used_bytes(), 3 * 4096);
  while (session.num_rows() < 3 * rows_per_page) session.Add();
  CHECK(!session->MakeRoom(/*spare=*/0));
  CHECK(!session->is_full());
  CHECK_EQ(session.usage_->used_bytes(), 4 * 4096);
  session.CheckAll();
  session.Seal();
  while (!session.to_write_.empty()) CHECK_OK(session.TryWrite());
  session.CheckAll();
}

TEST(RowsWhoseWriteFailsStayInMemory) {
  for (const Fault fault :
       {Fault::kIoError, Fault::kNoSpace, Fault::kShortWrite}) {
    const TemporaryDirectory directory;
    FaultyFileSystem files;
    files.Fail(Call::kWrite, fault, 2);
    Session session(kCases[0], directory.path(), &files);
    while (session.num_rows() < session.layout_.capacity()) session.Add();
    CHECK_OK(session.TryWrite());
    CHECK_OK(session.TryWrite());
    CHECK_EQ(session.TryWrite().code(), fault == Fault::kNoSpace
                                            ? StatusCode::kResourceExhausted
                                            : StatusCode::kUnavailable);
    CHECK_EQ(session->written_pages(), 2);
    CHECK(!session->is_written());
    for (int64_t r = 0; r < session.num_rows(); ++r) session.CheckRow(r);
    CHECK_EQ(session.num_read_, 2 * session.layout_.rows_per_page);
  }
}

// ------ The limit.

TEST(UsageNeverPassesTheLimit) {
  DiskUsage usage(1000);
  CHECK_EQ(usage.limit_bytes(), 1000);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&usage, t] {
      Random random(t);
      for (int i = 0; i < 5000; ++i) {
        const int64_t bytes = random.Below(600);
        if (!usage.Reserve(bytes, random.Below(100))) continue;
        CHECK_LE(usage.used_bytes(), 1000);
        usage.Release(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(usage.used_bytes(), 0);
  CHECK(usage.Reserve(900, 100));
  CHECK(!usage.Reserve(0, 101));
  CHECK(!usage.Reserve(101, 0));
  CHECK(usage.Reserve(100, 0));
  CHECK_EQ(usage.used_bytes(), 1000);
}

TEST(WithoutALimitThereIsAlwaysRoom) {
  DiskUsage usage(-1);
  CHECK(usage.Reserve(int64_t{1} << 60, int64_t{1} << 60));
  CHECK_EQ(usage.used_bytes(), int64_t{1} << 60);
}

}  // namespace
}  // namespace tfctr
