#include "tfctr_ops/cc/store/segment_format.h"

#include <cstdio>
#include <cstring>

#include "tfctr_ops/cc/store/checksum.h"

namespace tfctr {
namespace {

// Of `bytes`, with the four at `field` taken for zero.
uint32_t ChecksumWithout(const std::byte* bytes, int64_t size, int64_t field) {
  constexpr uint32_t kZero = 0;
  uint32_t crc = Crc32c(bytes, field);
  crc = Crc32c(&kZero, sizeof(kZero), crc);
  const int64_t rest = field + static_cast<int64_t>(sizeof(kZero));
  return Crc32c(bytes + rest, size - rest, crc);
}

uint32_t Load32(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

constexpr int64_t kRowField = offsetof(RowHeader, mark);
constexpr int64_t kPageField = offsetof(PageHeader, checksum);
constexpr int64_t kHeaderField = offsetof(SegmentHeader, checksum);

}  // namespace

constexpr char SegmentHeader::kMagic[8];

void CopyForDisk(const std::byte* row, int64_t row_bytes, std::byte* to) {
  std::memcpy(to, row, static_cast<size_t>(row_bytes));
  RowHeader* header = RowLayout::Header(to);
  header->score = 0;
  header->dirty = 0;
  header->mark = 0;
}

void SealRow(std::byte* row, int64_t row_bytes) {
  RowLayout::Header(row)->mark = ChecksumWithout(row, row_bytes, kRowField);
}

bool OpenRow(std::byte* row, int64_t row_bytes, uint32_t* stored,
             uint32_t* computed) {
  *stored = RowLayout::Header(row)->mark;
  *computed = ChecksumWithout(row, row_bytes, kRowField);
  RowLayout::Header(row)->mark = 0;
  return *stored == *computed;
}

void SealPage(const SegmentLayout& layout, uint64_t segment, uint32_t shard,
              int64_t page, int64_t num_rows, std::byte* bytes) {
  for (int64_t r = 0; r < num_rows; ++r) {
    SealRow(bytes + layout.InPage(r), layout.row_bytes);
  }
  const PageHeader header = {0, static_cast<uint32_t>(num_rows), shard,
                             static_cast<uint32_t>(page + 1), segment};
  std::memcpy(bytes, &header, sizeof(header));
  const uint32_t crc = ChecksumWithout(bytes, layout.page_bytes, kPageField);
  std::memcpy(bytes + kPageField, &crc, sizeof(crc));
}

void SealHeader(const SegmentLayout& layout, uint64_t segment, uint32_t shard,
                std::byte* bytes) {
  SegmentHeader header = {};
  std::memcpy(header.magic, SegmentHeader::kMagic, sizeof(header.magic));
  header.version = SegmentHeader::kVersion;
  header.segment = segment;
  header.shard = shard;
  header.page_bytes = static_cast<uint32_t>(layout.page_bytes);
  header.row_bytes = static_cast<uint32_t>(layout.row_bytes);
  header.rows_per_page = static_cast<uint32_t>(layout.rows_per_page);
  header.dim = static_cast<uint32_t>(layout.rows.dim());
  header.num_slot_floats = static_cast<uint32_t>(layout.rows.num_slot_floats());
  std::memset(bytes, 0, static_cast<size_t>(layout.page_bytes));
  std::memcpy(bytes, &header, sizeof(header));
  const uint32_t crc = ChecksumWithout(bytes, layout.page_bytes, kHeaderField);
  std::memcpy(bytes + kHeaderField, &crc, sizeof(crc));
}

Status CheckPage(const SegmentLayout& layout, int64_t page,
                 const std::string& path, std::byte* bytes) {
  const uint32_t stored = Load32(bytes + kPageField);
  const uint32_t computed =
      ChecksumWithout(bytes, layout.page_bytes, kPageField);
  if (stored != computed) {
    return Damaged(path, layout.PageOffset(page), "page", stored, computed);
  }
  PageHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.page != page + 1 || header.num_rows > layout.rows_per_page) {
    return Status::DataLoss("'" + path + "' is damaged at offset " +
                            std::to_string(layout.PageOffset(page)) +
                            ": expected page " + std::to_string(page + 1) +
                            " with at most " +
                            std::to_string(layout.rows_per_page) +
                            " rows, found page " + std::to_string(header.page) +
                            " with " + std::to_string(header.num_rows) + ".");
  }
  return Status::Ok();
}

Status CheckHeader(const std::string& path, int64_t size, std::byte* bytes,
                   SegmentHeader* header) {
  std::memcpy(header, bytes, sizeof(*header));
  if (std::memcmp(header->magic, SegmentHeader::kMagic,
                  sizeof(header->magic)) != 0) {
    return Status::DataLoss("'" + path + "' is not a segment of tfctr.");
  }
  if (header->version != SegmentHeader::kVersion) {
    return Status::InvalidArgument(
        "'" + path + "' has version " + std::to_string(header->version) +
        " of the format; this tfctr reads version " +
        std::to_string(SegmentHeader::kVersion) + ".");
  }
  const uint32_t computed = ChecksumWithout(bytes, size, kHeaderField);
  if (header->checksum != computed) {
    return Damaged(path, 0, "page", header->checksum, computed);
  }
  return Status::Ok();
}

Status Damaged(const std::string& path, int64_t offset, const std::string& what,
               uint32_t stored, uint32_t computed) {
  char numbers[64];
  std::snprintf(numbers, sizeof(numbers), "expected %08x, found %08x", stored,
                computed);
  return Status::DataLoss("'" + path + "' is damaged at offset " +
                          std::to_string(offset) + ": checksum of a " + what +
                          ": " + numbers + ".");
}

}  // namespace tfctr
