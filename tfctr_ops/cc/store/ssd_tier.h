// SsdTier: the rows of one store that have no place in memory, on disk.
//
// Each shard appends to segments of its own; full chunks of them are written by
// a background thread. A row is addressed by its location, a number within its
// shard that never changes; a newer copy of a key is a new row elsewhere, and
// the old one is dropped. Where fewer than half of a shard's rows are live, the
// store compacts its stalest segment: it moves the live ones and drops the
// file.
//
// Rows that leave memory and rows that are moved go to different segments. The
// former are used now and then, and most of their copies are stale soon; the
// latter outlasted that. So the stalest segment has few rows to move, and rows
// used about as often lie together.
//
// The directory is scratch space of one process: it holds nothing that survives
// the store. Snapshots do.

#ifndef TFCTR_OPS_CC_STORE_SSD_TIER_H_
#define TFCTR_OPS_CC_STORE_SSD_TIER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/background_thread.h"
#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/segment.h"
#include "tfctr_ops/cc/store/segment_format.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

using Location = uint32_t;
constexpr Location kNowhere = 0xffffffffU;
constexpr int64_t kMaxLocations = int64_t{1} << 31;  // Of one shard.

struct SsdOptions {
  std::string directory;     // Empty: no SSD tier.
  int64_t limit_bytes = -1;  // Of all files; < 0 means none.
  // Of the rows in memory; < 0 means none. Chunks are small when it is.
  int64_t ram_bytes = -1;
  bool direct_reads = false;  // Past the system's page cache.
  // Whether the training goes before the writing of files.
  bool gives_way = false;
  FileSystem* files = FileSystem::Posix();
};

class SsdTier {
 public:
  // The least limit that leaves every shard room for its segments.
  static int64_t MinLimitBytes(const RowLayout& rows, int64_t num_shards);

  // Takes a directory of its own under options.directory, and removes those
  // whose owners are gone.
  static Status Open(const SsdOptions& options, const RowLayout& rows,
                     int64_t num_shards, std::unique_ptr<SsdTier>* tier);
  // Removes the directory.
  ~SsdTier();
  SsdTier(const SsdTier&) = delete;
  SsdTier& operator=(const SsdTier&) = delete;

  // REQUIRES, from here to the next line: the lock of the shard.

  // What a row is written for.
  enum class Purpose {
    kEviction,    // It leaves memory.
    kSnapshot,    // It belongs to the snapshot that is being made.
    kCompaction,  // It moves; may use what is kept back for that.
  };
  // Appends a row. Returns false if the limit leaves no room, or after an error
  // of the disk, which error() tells.
  bool Append(int64_t shard, const std::byte* row, Purpose purpose,
              Location* location);
  // The row there is not current any more; with kSnapshot, not in the snapshot
  // either.
  void Drop(int64_t shard, Location location, Purpose purpose);
  // Starts loading what Drop needs, for what follows soon.
  void PrefetchDrop(int64_t shard, Location location) const {
    segments(shard)[static_cast<size_t>(location / layout_.capacity())]
        ->PrefetchLive(location % layout_.capacity());
  }
  // Drops all rows.
  void Clear(int64_t shard);

  // A row to be read, with the segment that holds it kept alive.
  struct Read {
    std::shared_ptr<Segment> segment;  // Null if it was in memory.
    int64_t offset;                    // In its file.
    std::byte* to;                     // row_bytes.
    const std::byte* mapped;           // The row in the file; may be null.
  };
  // Reads the row at once if it is in memory.
  Read Prepare(int64_t shard, Location location, std::byte* to) const;

  // Copies pages of a segment from the file or from memory, at most up to its
  // last row.
  Status CopyPages(Segment* segment, int64_t first_page, int64_t num_pages,
                   std::byte* to) const;

  // Live rows of a shard.
  int64_t num_live(int64_t shard) const {
    return shards_[static_cast<size_t>(shard)].num_live;
  }
  // The segments of a shard, by place; null where there is none.
  const std::vector<std::shared_ptr<Segment>>& segments(int64_t shard) const {
    return shards_[static_cast<size_t>(shard)].segments;
  }
  Location LocationOf(size_t place, int64_t row) const {
    return static_cast<Location>(
        static_cast<int64_t>(place) * layout_.capacity() + row);
  }
  // Of the segment at a location, or 0 if there is none; no two have the same.
  uint64_t SegmentNumber(int64_t shard, Location location) const {
    const auto place = static_cast<size_t>(location / layout_.capacity());
    const auto& all = segments(shard);
    return place < all.size() && all[place] != nullptr ? all[place]->number()
                                                       : 0;
  }
  // The segment that is to be compacted, or null: of those that are sealed and
  // written, the one with the smallest share of live rows. It must be less than
  // three quarters, and more than half of the shard's rows stale; with `any`,
  // it must have a stale row.
  std::shared_ptr<Segment> FindStale(int64_t shard, bool any,
                                     size_t* place) const;
  // The open segments take no more rows; what they hold is being written.
  void Seal(int64_t shard);

  // From here on, segments remember which rows are current at this moment, and
  // stay. REQUIRES: the locks of all shards.
  void BeginCut();
  // A segment with rows of the snapshot.
  struct CutSegment {
    std::shared_ptr<Segment> segment;
    int64_t num_rows;
    std::vector<uint64_t> live;
  };
  // Appends the segments of a shard that hold rows of the snapshot.
  void CutOf(int64_t shard, std::vector<CutSegment>* segments) const;
  // The snapshot is made, or given up. REQUIRES: the locks of all shards.
  void EndCut();

  // ------ From any thread:

  // Reads and checks those rows that the system has in memory, and takes them
  // out of `reads`; while it has nearly all, the others too. What is left is
  // worth the many threads that wait for a disk. REQUIRES, here and below: no
  // segment is null.
  Status ReadCached(std::vector<Read>* reads);
  // Reads and checks all rows, many at a time.
  Status ReadAll(std::vector<Read>* reads);
  // Reads pages of a segment that are in the file, in one go, and checks them.
  Status ReadPages(Segment* segment, int64_t first_page, int64_t num_pages,
                   std::byte* to) const;

  // Called, with the lock of the shard held, after each drop of a row while
  // more than half of the shard's rows are stale.
  void set_on_stale(std::function<void(int64_t shard)> on_stale) {
    on_stale_ = std::move(on_stale);
  }

  // Waits until all chunks that were handed over are written.
  void FinishWrites();
  // Waits until the writer is no more than a few chunks behind.
  void AwaitWriter();
  // The first error of the background, for good.
  Status error() const;
  void SetError(Status status);
  // Whether a row was refused for want of room since ClearFull().
  bool is_full() const { return is_full_.load(); }
  void ClearFull() { is_full_ = false; }
  // Whether there is room for a chunk of a new segment.
  bool HasRoom() const {
    const int64_t bytes = (1 + chunk_pages_) * layout_.page_bytes;
    return limit_bytes() < 0 ||
           used_bytes() + bytes + spare_bytes_ <= limit_bytes();
  }

  const SegmentLayout& layout() const { return layout_; }
  const std::string& directory() const { return directory_; }
  FileSystem* files() const { return files_; }
  int64_t limit_bytes() const { return usage_->limit_bytes(); }
  int64_t used_bytes() const { return usage_->used_bytes(); }
  int64_t rows_read() const { return rows_read_.load(); }
  // Whether the page cache had nearly all rows that were read lately.
  bool is_warm() const { return is_warm_.load(); }
  // Whether reads hardly ever wait for the disk.
  bool reads_from_cache() const { return !direct_reads_ && is_warm(); }
  int64_t rows_written() const { return rows_written_.load(); }
  // Appended for snapshots.
  int64_t rows_saved() const { return rows_saved_.load(); }

 private:
  struct OpenSegment {
    std::shared_ptr<Segment> segment;  // Null if there is none.
    size_t place = 0;
  };
  struct ShardSegments {
    std::vector<std::shared_ptr<Segment>> segments;  // By place.
    std::vector<size_t> free_places;
    // Those that take rows: what leaves memory, and what is moved.
    OpenSegment open[2];
    int64_t num_rows = 0;
    int64_t num_live = 0;
    // Whether it is time to compact.
    bool is_stale() const { return num_rows > 2 * num_live; }
    // All there were at the cut, and those dropped since.
    std::vector<std::shared_ptr<Segment>> at_cut;
  };

  SsdTier(const SsdOptions& options, const RowLayout& rows, int64_t num_shards,
          std::string directory, std::unique_ptr<FileLock> lock);

  // Makes a segment; false if there is no room.
  bool StartSegment(ShardSegments* own, int64_t shard, int64_t spare,
                    OpenSegment* open);
  // How many rows a segment takes before it is sealed.
  int64_t EnoughRows(const ShardSegments& own) const;
  void SealOpen(ShardSegments* own, OpenSegment* open);
  // Drops the sealed segment there, which has no live row.
  void GiveUp(ShardSegments* own, size_t place);
  int64_t MaxPendingBytes() const;
  void HandOver(const std::shared_ptr<Segment>& segment,
                std::shared_ptr<Segment::Chunk> chunk, bool waits);
  Status CheckRead(const Read& read, std::byte* row) const;
  // Copies the rows of files that are memory, and takes them out of `reads`.
  Status CopyMapped(std::vector<Read>* reads);
  // Notes that `n` rows were looked for in the page cache, of which `num_waits`
  // were not there.
  void NoteCached(int64_t n, int64_t num_waits);
  // Of the rows from `begin` on that are read in one go.
  size_t EndOfRun(const std::vector<Read>& reads, size_t begin) const;
  // Reads the rows [begin, end) of `reads`, neighbours in one go.
  Status ReadRun(const std::vector<Read>& reads, size_t begin, size_t end,
                 bool only_cached, bool* done) const;

  FileSystem* const files_;
  const SegmentLayout layout_;
  const int64_t chunk_pages_;
  const bool direct_reads_;
  const std::string directory_;
  const std::unique_ptr<FileLock> lock_;
  const std::shared_ptr<DiskUsage> usage_;
  const int64_t spare_bytes_;  // Kept back for compaction.
  std::function<void(int64_t)> on_stale_;

  std::vector<ShardSegments> shards_;  // Each guarded by its shard's lock.
  int64_t cut_ = 0;       // Of the snapshot that is being made, else 0.
  int64_t next_cut_ = 1;  // Both guarded by all shards' locks.

  std::atomic<uint64_t> next_number_{1};
  std::atomic<bool> is_full_{false};
  std::atomic<bool> has_error_{false};
  // Whether the page cache has nearly all that is read. Else maps are not used:
  // a thread that waits for a page does not do anything else.
  std::atomic<bool> is_warm_{true};
  std::atomic<int64_t> rows_tried_{0};  // Lately; see NoteCached.
  std::atomic<int64_t> rows_waited_{0};
  std::atomic<int64_t> rows_read_{0};
  std::atomic<int64_t> rows_written_{0};
  std::atomic<int64_t> rows_saved_{0};
  mutable std::mutex mutex_;
  std::condition_variable written_;
  Status error_;               // Guarded by mutex_, as all below.
  int64_t pending_bytes_ = 0;  // Handed over and not written.
  BackgroundThread writer_;    // Last: its jobs use all others.
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SSD_TIER_H_
