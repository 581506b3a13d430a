#include "tfctr_ops/cc/store/segment.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/segment_session.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/segment_format.h"

namespace tfctr {
namespace {

using testing::Bytes;
using testing::FaultyFileSystem;
using testing::kSegmentCases;
using testing::Random;
using testing::SegmentCase;
using testing::SegmentSession;
using testing::TemporaryDirectory;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

TEST(RowsComeBackToTheBitFromMemoryAndFromTheFile) {
  for (const SegmentCase& c : kSegmentCases) {
    const TemporaryDirectory directory;
    SegmentSession session(c, directory.path(), FileSystem::Posix());
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
  for (const SegmentCase& c : kSegmentCases) {
    const int64_t capacity = c.layout().capacity();
    for (const int64_t num_rows :
         {int64_t{0}, int64_t{1}, c.layout().rows_per_page,
          c.chunk_pages * c.layout().rows_per_page, capacity / 2, capacity - 1,
          capacity}) {
      const TemporaryDirectory directory;
      SegmentSession session(c, directory.path(), FileSystem::Posix());
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
  SegmentSession session(kSegmentCases[2], directory.path(),
                         FileSystem::Posix());
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
  SegmentSession session(kSegmentCases[5], directory.path(),
                         FileSystem::Posix());
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

TEST(ASegmentTakesItsFileAndItsRoomWithIt) {
  const TemporaryDirectory directory;
  SegmentSession session(kSegmentCases[0], directory.path(),
                         FileSystem::Posix());
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
  const SegmentLayout layout = kSegmentCases[0].layout();
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
  const SegmentLayout layout = kSegmentCases[0].layout();
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
  SegmentSession session(kSegmentCases[0], directory.path(),
                         FileSystem::Posix(), 4 * 4096);
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
    SegmentSession session(kSegmentCases[0], directory.path(), &files);
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
