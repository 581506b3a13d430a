#include "tfctr_ops/cc/store/store_inspection.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/segment.h"
#include "tfctr_ops/cc/store/segment_format.h"

namespace tfctr {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr char kPrefix[] = "segment-";
constexpr int64_t kBytesAtOnce = int64_t{256} << 10;
// Damaged pages of a file that get a message each.
constexpr int64_t kMaxMessages = 10;

struct SegmentFile {
  std::string name;
  SegmentHeader header;
};

struct Key {
  int64_t id;
  int64_t feature;

  bool operator<(const Key& other) const {
    return id != other.id ? id < other.id : feature < other.feature;
  }
  bool operator==(const Key& other) const {
    return id == other.id && feature == other.feature;
  }
};

SegmentLayout LayoutOf(const SegmentHeader& header) {
  return SegmentLayout(RowLayout(header.dim, header.num_slot_floats), 0);
}

class Inspector {
 public:
  Inspector(FileSystem* files, const std::string& directory,
            StoreInspection* found)
      : files_(files), directory_(directory), found_(found) {}

  Status Run() {
    std::vector<std::string> names;
    Status status = files_->List(directory_, &names);
    if (!status.ok()) return status;
    // Asking for a lock that is not there would make it.
    if (std::binary_search(names.begin(), names.end(), kLockName)) {
      std::unique_ptr<FileLock> lock;
      status = files_->Lock(PathOf(kLockName), false, &lock);
      if (!status.ok()) return status;
      found_->is_in_use = lock == nullptr;
    }
    for (const std::string& name : names) {
      if (name.rfind(kPrefix, 0) == 0) ReadHeader(name);
    }
    // All rows of a key are in one shard.
    for (const auto& [shard, segments] : shards_) {
      std::vector<Key> keys;
      for (const SegmentFile& segment : segments) ReadPages(segment, &keys);
      std::sort(keys.begin(), keys.end());
      const auto end = std::unique(keys.begin(), keys.end());
      found_->num_keys += end - keys.begin();
    }
    return Status::Ok();
  }

 private:
  std::string PathOf(const std::string& name) const {
    return directory_ + "/" + name;
  }

  void NoteDamage(std::string message) {
    found_->damage.push_back(std::move(message));
  }

  // Whether the file could be opened; notes why not, unless it is gone.
  bool Open(const std::string& name, std::unique_ptr<File>* file,
            int64_t* size) {
    Status status = files_->Open(PathOf(name), FileSystem::Mode::kRead, file);
    if (status.ok()) status = (*file)->Size(size);
    if (status.ok()) return true;
    std::vector<std::string> names;
    const bool is_there = files_->List(directory_, &names).ok() &&
                          std::binary_search(names.begin(), names.end(), name);
    if (is_there) NoteDamage(status.message());
    return false;
  }

  // The file ends there, within a page.
  void NoteTornPage(const std::string& name, int64_t offset, int64_t size) {
    if (found_->is_in_use) return;  // The owner may be writing it.
    NoteDamage("'" + PathOf(name) + "' is damaged at offset " +
               std::to_string(offset) + ": it ends within a page, after " +
               std::to_string(size) + " bytes.");
  }

  // Files the segment under its shard, if its first page is in order.
  void ReadHeader(const std::string& name) {
    std::unique_ptr<File> file;
    int64_t size = 0;
    if (!Open(name, &file, &size)) return;
    ++found_->num_segments;
    found_->bytes += size;
    // The first page is written together with the first rows.
    if (size == 0) return;
    if (size < SegmentLayout::kSector) return NoteTornPage(name, 0, size);
    AlignedBytes page(SegmentLayout::kSector);
    int64_t page_bytes = SegmentLayout::kSector;
    Status status = file->Read(0, page_bytes, page.data());
    SegmentHeader header;
    std::memcpy(&header, page.data(), sizeof(header));
    // A page is only as large as it says if the rest of it agrees.
    const bool agrees = header.dim >= 1 &&
                        LayoutOf(header).page_bytes == header.page_bytes &&
                        LayoutOf(header).row_bytes == header.row_bytes &&
                        LayoutOf(header).rows_per_page == header.rows_per_page;
    if (status.ok() && agrees && header.page_bytes > page_bytes) {
      page_bytes = header.page_bytes;
      if (size < page_bytes) return NoteTornPage(name, 0, size);
      page = AlignedBytes(page_bytes);
      status = file->Read(0, page_bytes, page.data());
    }
    if (status.ok()) {
      status = CheckHeader(PathOf(name), page_bytes, page.data(), &header);
    }
    if (status.ok() && !agrees) {
      status = Status::DataLoss("'" + PathOf(name) +
                                "' is damaged at offset 0: it tells sizes that "
                                "do not go together.");
    }
    if (!status.ok()) return NoteDamage(status.message());
    found_->dim = header.dim;
    found_->num_slot_floats = header.num_slot_floats;
    found_->row_bytes = header.row_bytes;
    shards_[header.shard].push_back({name, header});
  }

  void ReadPages(const SegmentFile& segment, std::vector<Key>* keys) {
    const SegmentLayout layout = LayoutOf(segment.header);
    std::unique_ptr<File> file;
    int64_t size = 0;
    if (!Open(segment.name, &file, &size)) return;
    // Of a page that lies within the file, all bytes are written.
    const int64_t num_pages = size / layout.page_bytes - 1;
    const int64_t at_once =
        std::max<int64_t>(1, kBytesAtOnce / layout.page_bytes);
    const AlignedBytes pages(at_once * layout.page_bytes);
    int64_t num_damaged = 0;
    for (int64_t first = 0; first < num_pages; first += at_once) {
      const int64_t n = std::min(at_once, num_pages - first);
      const Status status = file->Read(layout.PageOffset(first),
                                       n * layout.page_bytes, pages.data());
      if (!status.ok()) return NoteDamage(status.message());
      for (int64_t p = 0; p < n; ++p) {
        std::byte* const page = pages.data() + p * layout.page_bytes;
        const Status check = Check(segment, layout, first + p, page);
        if (check.ok()) {
          TakeKeys(layout, page, keys);
        } else if (++num_damaged <= kMaxMessages) {
          NoteDamage(check.message());
        }
      }
    }
    if (num_damaged > kMaxMessages) {
      NoteDamage("'" + PathOf(segment.name) + "' has " +
                 std::to_string(num_damaged - kMaxMessages) +
                 " more damaged pages.");
    }
    const int64_t end = (1 + num_pages) * layout.page_bytes;
    if (end < size) NoteTornPage(segment.name, end, size);
  }

  // Whether this is the page of this very file.
  Status Check(const SegmentFile& segment, const SegmentLayout& layout,
               int64_t number, std::byte* page) const {
    const std::string path = PathOf(segment.name);
    Status status = CheckPage(layout, number, path, page);
    if (!status.ok()) return status;
    PageHeader header;
    std::memcpy(&header, page, sizeof(header));
    if (header.segment != segment.header.segment ||
        header.shard != segment.header.shard) {
      return Status::DataLoss(
          "'" + path + "' is damaged at offset " +
          std::to_string(layout.PageOffset(number)) + ": expected a page of " +
          "segment " + std::to_string(segment.header.segment) + " of shard " +
          std::to_string(segment.header.shard) + ", found one of segment " +
          std::to_string(header.segment) + " of shard " +
          std::to_string(header.shard) + ".");
    }
    return status;
  }

  void TakeKeys(const SegmentLayout& layout, std::byte* page,
                std::vector<Key>* keys) {
    PageHeader header;
    std::memcpy(&header, page, sizeof(header));
    for (int64_t r = 0; r < header.num_rows; ++r) {
      const RowHeader* row = RowLayout::Header(page + layout.InPage(r));
      keys->push_back({row->id, row->feature});
    }
    found_->num_rows += header.num_rows;
  }

  FileSystem* const files_;
  const std::string directory_;
  StoreInspection* const found_;
  std::map<uint32_t, std::vector<SegmentFile>> shards_;
};

}  // namespace

Status InspectStore(FileSystem* files, const std::string& directory,
                    StoreInspection* inspection) {
  *inspection = {};
  return Inspector(files, directory, inspection).Run();
}

}  // namespace tfctr
