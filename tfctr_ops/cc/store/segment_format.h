// What lies where in a segment file; FORMAT.md says it in words.

#ifndef TFCTR_OPS_CC_STORE_SEGMENT_FORMAT_H_
#define TFCTR_OPS_CC_STORE_SEGMENT_FORMAT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// The first page of a file holds this and zeros.
struct SegmentHeader {
  static constexpr char kMagic[8] = {'t', 'f', 'c', 't', 'r', 'S', 'E', 'G'};
  static constexpr uint32_t kVersion = 1;

  char magic[8];
  uint32_t version;
  uint32_t checksum;  // Of the page, with this field zero.
  uint64_t segment;
  uint32_t shard;
  uint32_t page_bytes;
  uint32_t row_bytes;
  uint32_t rows_per_page;
  uint32_t dim;
  uint32_t num_slot_floats;
};
static_assert(sizeof(SegmentHeader) == 48, "It is written to disk.");

// Every other page: this, then rows, then zeros.
struct PageHeader {
  uint32_t checksum;  // Of the page, with this field zero.
  uint32_t num_rows;
  uint32_t shard;
  uint32_t page;  // In the file, from 1.
  uint64_t segment;
};
static_assert(sizeof(PageHeader) == 24, "It is written to disk.");

// The sizes of one store's segments.
class SegmentLayout {
 public:
  static constexpr int64_t kSector = 4096;  // What a disk reads at once.

  SegmentLayout(const RowLayout& rows, int64_t segment_bytes)
      : rows(rows),
        row_bytes(rows.row_bytes()),
        page_bytes((Header() + row_bytes + kSector - 1) / kSector * kSector),
        rows_per_page((page_bytes - Header()) / row_bytes),
        pages(std::max<int64_t>(1, segment_bytes / page_bytes - 1)) {}

  // Rows of a full segment.
  int64_t capacity() const { return pages * rows_per_page; }
  int64_t file_bytes() const { return (1 + pages) * page_bytes; }
  // Where page `page`, counted from 0 behind the first, begins in the file.
  int64_t PageOffset(int64_t page) const { return (1 + page) * page_bytes; }
  int64_t InPage(int64_t row) const {
    return Header() + row % rows_per_page * row_bytes;
  }
  // Where row `row` is in pages that follow one another in memory.
  int64_t InPages(int64_t row) const {
    return row / rows_per_page * page_bytes + InPage(row);
  }
  int64_t RowOffset(int64_t row) const {
    return PageOffset(row / rows_per_page) + InPage(row);
  }

  const RowLayout rows;
  const int64_t row_bytes;
  const int64_t page_bytes;
  const int64_t rows_per_page;
  const int64_t pages;  // That hold rows.

 private:
  static constexpr int64_t Header() {
    return static_cast<int64_t>(sizeof(PageHeader));
  }
};

// Copies a row as it is written: without what only memory needs.
void CopyForDisk(const std::byte* row, int64_t row_bytes, std::byte* to);

// Sets the checksum of a row in a page.
void SealRow(std::byte* row, int64_t row_bytes);
// Whether the row is as SealRow left it; then takes the checksum out. Else
// *stored and *computed tell the difference.
bool OpenRow(std::byte* row, int64_t row_bytes, uint32_t* stored,
             uint32_t* computed);

// Sets header and checksums of page `page` (from 0), whose rows stand in it.
void SealPage(const SegmentLayout& layout, uint64_t segment, uint32_t shard,
              int64_t page, int64_t num_rows, std::byte* bytes);
void SealHeader(const SegmentLayout& layout, uint64_t segment, uint32_t shard,
                std::byte* bytes);

// Whether a page is as SealPage left it. `path` is for the message.
Status CheckPage(const SegmentLayout& layout, int64_t page,
                 const std::string& path, std::byte* bytes);
// Reads the sizes from the first page of any segment.
Status CheckHeader(const std::string& path, int64_t size, std::byte* bytes,
                   SegmentHeader* header);

// "'path' is damaged at offset ...": for every kind of mismatch.
Status Damaged(const std::string& path, int64_t offset, const std::string& what,
               uint32_t stored, uint32_t computed);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SEGMENT_FORMAT_H_
