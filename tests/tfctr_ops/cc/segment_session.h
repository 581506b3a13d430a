// SegmentSession: a segment, what should be in it, and what else its tests
// share.

#ifndef TESTS_TFCTR_OPS_CC_SEGMENT_SESSION_H_
#define TESTS_TFCTR_OPS_CC_SEGMENT_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/segment.h"
#include "tfctr_ops/cc/store/segment_format.h"

namespace tfctr {
namespace testing {

using Bytes = std::vector<std::byte>;

// A row as it may stand in memory: with what only memory needs.
inline Bytes RandomRow(const RowLayout& layout, Random* random) {
  Bytes row(static_cast<size_t>(layout.row_bytes()));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random->Below(256));
  RowHeader* header = RowLayout::Header(row.data());
  header->known = 1;
  header->live = 1;
  return row;
}

// The same without it.
inline Bytes OnDisk(Bytes row) {
  RowHeader* header = RowLayout::Header(row.data());
  header->score = 0;
  header->dirty = 0;
  header->mark = 0;
  return row;
}

struct SegmentCase {
  int64_t dim;
  int64_t num_slot_floats;
  int64_t segment_bytes;
  int64_t chunk_pages;

  SegmentLayout layout() const {
    return SegmentLayout(RowLayout(dim, num_slot_floats), segment_bytes);
  }
};

const SegmentCase kSegmentCases[] = {
    {4, 4, 5 * 4096, 1},     {1, 0, 5 * 4096, 2},   {3, 0, 9 * 4096, 3},
    {900, 0, 8 * 4096, 2},   {1012, 0, 40960, 4},   {1013, 0, 7 * 8192, 1},
    {64, 129, 11 * 4096, 5}, {8, 16, 6 * 4096, 99},
};

// A segment, what should be in it, and the chunks that wait to be written.
class SegmentSession {
 public:
  using Chunk = std::shared_ptr<Segment::Chunk>;

  SegmentSession(const SegmentCase& c, const std::string& directory,
                 FileSystem* files, int64_t limit_bytes = -1)
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

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_SEGMENT_SESSION_H_
