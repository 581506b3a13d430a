// Segment: one append-only file of rows of one shard.
//
// Rows are added to chunks in memory; a full chunk is written in one go, and
// rows are read from the file from then on. A bit per row says whether it is
// the current copy of its key on disk.

#ifndef TFCTR_OPS_CC_STORE_SEGMENT_H_
#define TFCTR_OPS_CC_STORE_SEGMENT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/mapped_file.h"
#include "tfctr_ops/cc/store/segment_format.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// How many bytes the files of a store take, and may take.
class DiskUsage {
 public:
  // `limit_bytes` < 0 means no limit.
  explicit DiskUsage(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t used_bytes() const { return used_bytes_.load(); }

  // Takes `bytes` if `spare` bytes then remain of the limit.
  bool Reserve(int64_t bytes, int64_t spare) {
    int64_t used = used_bytes_.load();
    do {
      if (limit_bytes_ >= 0 && used + bytes + spare > limit_bytes_)
        return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void Release(int64_t bytes) { used_bytes_.fetch_sub(bytes); }

 private:
  const int64_t limit_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

// Memory as direct reads and writes need it.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

class Segment {
 public:
  // Reserves room for the first page and makes the file. *segment stays null,
  // without an error, if there is no room.
  static Status Create(FileSystem* files, const SegmentLayout& layout,
                       int64_t chunk_pages, const std::string& path,
                       uint64_t number, uint32_t shard,
                       std::shared_ptr<DiskUsage> usage, int64_t spare,
                       std::shared_ptr<Segment>* segment);
  // Removes the file.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint64_t number() const { return number_; }
  const std::string& path() const { return file_->path(); }

  // REQUIRES, from here to the next line: the lock of the shard.

  int64_t num_rows() const { return num_rows_; }
  int64_t num_live() const { return num_live_; }
  bool is_sealed() const { return is_sealed_; }
  bool is_full() const { return num_rows_ == layout_.capacity(); }
  bool is_live(int64_t row) const {
    return (live_[static_cast<size_t>(row / 64)] >> (row % 64)) & 1;
  }
  void PrefetchLive(int64_t row) const {
    __builtin_prefetch(&live_[static_cast<size_t>(row / 64)], /*write=*/1);
  }
  // `cut` is which snapshot is being made, or 0; see SsdTier::BeginCut.
  // `of_cut` is whether the change belongs to its moment.
  void ClearLive(int64_t row, int64_t cut, bool of_cut);
  // The live rows as of the cut, and how many. REQUIRES: the cut goes on.
  const std::vector<uint64_t>& live_at(int64_t cut) const {
    return cut_ == cut ? cut_live_ : live_;
  }

  // Makes sure that a row can be added; false if the disk limit does not let.
  bool MakeRoom(int64_t spare);
  // Adds the row, live, and returns its number. REQUIRES: MakeRoom.
  int64_t Add(const std::byte* row, int64_t cut, bool of_cut);

  // A chunk with nothing more to come.
  struct Chunk {
    explicit Chunk(int64_t bytes) : memory(bytes) {}
    AlignedBytes memory;
    int64_t first_page = 0;
    int64_t num_rows = 0;
  };
  // The chunk that the last Add completed, or null.
  std::shared_ptr<Chunk> TakeFullChunk();
  // No row will be added. Returns the rest that is not written yet, or null.
  std::shared_ptr<Chunk> Seal();

  // Whether the file has every row.
  bool is_written() const {
    return written_chunks_.load(std::memory_order_acquire) ==
           static_cast<int64_t>(chunks_.size());
  }
  // How many of its pages the file has.
  int64_t written_pages() const {
    return std::min(layout_.pages, written_chunks_.load() * chunk_pages_);
  }
  // Frees the memory of chunks that are in the file.
  void ReleaseWritten();
  // Copies a page that is still in memory, without its header.
  void CopyPageFromMemory(int64_t page, std::byte* to) const;
  // Copies the row if it is still in memory.
  bool CopyFromMemory(int64_t row, std::byte* to) const;
  // The file as memory, or null; as long as the segment lives.
  const std::byte* Mapped();

  // ------ From any thread:

  // Writes a chunk, which must come in their order.
  Status Write(const Chunk& chunk);

  // Brings what was written to the disk for good.
  Status Sync() { return file_->Sync(); }
  Status FileSize(int64_t* size) { return file_->Size(size); }
  // Reads bytes of the file that were written.
  Status Read(int64_t offset, int64_t size, std::byte* to) {
    return file_->Read(offset, size, to);
  }
  Status ReadCached(int64_t offset, int64_t size, std::byte* to, bool* done) {
    return file_->ReadCached(offset, size, to, done);
  }
  // The same past the page cache; see FileSystem::Mode::kReadDirect.
  Status ReadDirect(int64_t offset, int64_t size, std::byte* to);

 private:
  Segment(FileSystem* files, const SegmentLayout& layout, int64_t chunk_pages,
          uint64_t number, uint32_t shard, std::shared_ptr<DiskUsage> usage,
          std::unique_ptr<File> file);

  // Notes the live rows as of the cut, before the first change since.
  void NoteCut(int64_t cut) {
    if (cut == 0 || cut_ == cut) return;
    cut_ = cut;
    cut_live_ = live_;
  }
  int64_t chunk_rows() const { return chunk_pages_ * layout_.rows_per_page; }
  int64_t ChunkPages(int64_t chunk) const;

  FileSystem* const files_;
  const SegmentLayout& layout_;
  const int64_t chunk_pages_;
  const uint64_t number_;
  const uint32_t shard_;
  const std::shared_ptr<DiskUsage> usage_;
  const std::unique_ptr<File> file_;

  std::mutex direct_mutex_;
  std::unique_ptr<File> direct_file_;  // Guarded by direct_mutex_.

  // How many chunks are in the file.
  std::atomic<int64_t> written_chunks_{0};

  // Guarded by the lock of the shard:
  int64_t reserved_bytes_;
  int64_t num_rows_ = 0;
  int64_t num_live_ = 0;
  bool is_sealed_ = false;
  std::vector<uint64_t> live_;
  int64_t cut_ = 0;
  std::vector<uint64_t> cut_live_;              // Of cut_.
  std::vector<std::shared_ptr<Chunk>> chunks_;  // Null once seen as written.
  bool is_map_tried_ = false;
  std::unique_ptr<MappedFile> map_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SEGMENT_H_
