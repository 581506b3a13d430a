#include "tfctr_ops/cc/store/ssd_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tfctr {
namespace {

constexpr int64_t kMaxSegmentBytes = int64_t{64} << 20;
constexpr int64_t kMaxChunkBytes = int64_t{128} << 10;
constexpr int64_t kMaxPendingBytes = int64_t{64} << 20;
constexpr int64_t kMinPendingBytes = int64_t{1} << 20;
// Pages of the smallest segment, the first included, and how many such segments
// per shard the smallest limit must hold.
constexpr int64_t kMinSegmentPages = 5;
constexpr int64_t kMinSegments = 4;
constexpr char kPrefix[] = "tfctr-";
constexpr char kLockName[] = "LOCK";

SegmentLayout MakeLayout(const SsdOptions& options, const RowLayout& rows,
                         int64_t num_shards) {
  int64_t bytes = kMaxSegmentBytes;
  if (options.limit_bytes >= 0) {
    bytes = std::min(bytes, options.limit_bytes / num_shards / 8);
  }
  const int64_t page = SegmentLayout(rows, 0).page_bytes;
  return SegmentLayout(rows, std::max(bytes, kMinSegmentPages * page));
}

int64_t ChunkPages(const SsdOptions& options, const SegmentLayout& layout,
                   int64_t num_shards) {
  int64_t bytes = kMaxChunkBytes;
  if (options.ram_bytes >= 0) {
    bytes = std::min(bytes, options.ram_bytes / num_shards / 8);
  }
  bytes = std::min(bytes, layout.file_bytes() / 4);
  return std::max<int64_t>(1, bytes / layout.page_bytes);
}

// A segment is sealed when it has this share of the shard's live rows: the more
// segments, the better the stalest of them; but each holds an open file. There
// are two to four times as many in all: half of their rows may be stale, and
// those of a shard that was small are.
constexpr int64_t kSegmentsOfShard = 8;
// Yet not before it has so many chunks.
constexpr int64_t kMinChunks = 4;

// Whether compaction of the segment is worth its cost, if there is need for it.
// Where more than half of all rows are stale, some segment always is.
bool IsStale(const Segment& segment) {
  return segment.num_live() * 4 < segment.num_rows() * 3;
}

// Whether the name is such as Open gives: tfctr-<number>-<number>.
bool IsOurs(const std::string& name) {
  const size_t start = sizeof(kPrefix) - 1;
  if (name.compare(0, start, kPrefix) != 0) return false;
  const size_t dash = name.find('-', start);
  if (dash == std::string::npos || dash == start) return false;
  return dash + 1 < name.size() &&
         name.find_first_not_of("0123456789-", start) == std::string::npos &&
         name.find('-', dash + 1) == std::string::npos;
}

// Removes the directories under `parent` that nobody owns. REQUIRES: the lock
// of the parent, under which each is made and locked.
Status RemoveLeftOvers(FileSystem* files, const std::string& parent) {
  std::vector<std::string> names;
  Status status = files->List(parent, &names);
  for (const std::string& name : names) {
    if (!status.ok()) return status;
    if (!IsOurs(name)) continue;
    const std::string directory = parent + "/" + name;
    std::unique_ptr<FileLock> lock;
    // It may be no directory.
    if (!files->Lock(directory + "/" + kLockName, false, &lock).ok()) continue;
    if (lock != nullptr) status = files->RemoveTree(directory);
  }
  return status;
}

}  // namespace

int64_t SsdTier::MinLimitBytes(const RowLayout& rows, int64_t num_shards) {
  return num_shards * kMinSegments * kMinSegmentPages *
         SegmentLayout(rows, 0).page_bytes;
}

Status SsdTier::Open(const SsdOptions& options, const RowLayout& rows,
                     int64_t num_shards, std::unique_ptr<SsdTier>* tier) {
  static std::atomic<int64_t> next_number{0};
  FileSystem* const files = options.files;
  Status status = files->MakeDirectory(options.directory);
  if (!status.ok()) return status;
  // While it is held, no directory is between being made and being locked.
  std::unique_ptr<FileLock> parent_lock;
  status = files->Lock(options.directory + "/.tfctr-lock", true, &parent_lock);
  if (status.ok()) status = RemoveLeftOvers(files, options.directory);
  if (!status.ok()) return status;

  // Two machines may share the directory, and processes of two containers may
  // share their numbers: a name that is taken is passed over.
  while (true) {
    const std::string directory = options.directory + "/" + kPrefix +
                                  std::to_string(getpid()) + "-" +
                                  std::to_string(next_number++);
    std::vector<std::string> inside;
    if (files->List(directory, &inside).ok()) continue;
    status = files->MakeDirectory(directory);
    if (!status.ok()) return status;
    std::unique_ptr<FileLock> lock;
    status = files->Lock(directory + "/" + kLockName, false, &lock);
    if (!status.ok()) return status;
    if (lock == nullptr) continue;
    // The lock's file will do to find out, before the first row is written.
    std::unique_ptr<File> direct;
    if (options.direct_reads &&
        !files
             ->Open(directory + "/" + kLockName, FileSystem::Mode::kReadDirect,
                    &direct)
             .ok()) {
      files->RemoveTree(directory);
      return Status::InvalidArgument(
          "The file system of '" + options.directory +
          "' cannot be read past the page cache. Received: direct_reads=True. "
          "Leave `direct_reads` out, or name a directory on another disk.");
    }
    tier->reset(
        new SsdTier(options, rows, num_shards, directory, std::move(lock)));
    return Status::Ok();
  }
}

SsdTier::SsdTier(const SsdOptions& options, const RowLayout& rows,
                 int64_t num_shards, std::string directory,
                 std::unique_ptr<FileLock> lock)
    : files_(options.files),
      layout_(MakeLayout(options, rows, num_shards)),
      chunk_pages_(ChunkPages(options, layout_, num_shards)),
      direct_reads_(options.direct_reads),
      directory_(std::move(directory)),
      lock_(std::move(lock)),
      usage_(std::make_shared<DiskUsage>(options.limit_bytes)),
      spare_bytes_(layout_.file_bytes()),
      shards_(static_cast<size_t>(num_shards)),
      writer_(options.gives_way) {}

SsdTier::~SsdTier() {
  writer_.Finish();
  shards_.clear();
  files_->RemoveTree(directory_);
}

bool SsdTier::StartSegment(ShardSegments* own, int64_t shard, int64_t spare,
                           OpenSegment* open) {
  const bool is_new = own->free_places.empty();
  const size_t place = is_new ? own->segments.size() : own->free_places.back();
  if ((static_cast<int64_t>(place) + 1) * layout_.capacity() >= kMaxLocations) {
    return false;
  }
  for (const std::shared_ptr<Segment>& segment : own->segments) {
    if (segment != nullptr) segment->ReleaseWritten();
  }
  const uint64_t number = next_number_++;
  char name[32];
  std::snprintf(name, sizeof(name), "/segment-%012llu",
                static_cast<unsigned long long>(number));
  std::shared_ptr<Segment> segment;
  Status status =
      Segment::Create(files_, layout_, chunk_pages_, directory_ + name, number,
                      static_cast<uint32_t>(shard), usage_, spare, &segment);
  if (!status.ok()) SetError(std::move(status));
  if (segment == nullptr) return false;
  if (is_new) {
    own->segments.push_back(segment);
  } else {
    own->segments[place] = segment;
    own->free_places.pop_back();
  }
  *open = {std::move(segment), place};
  return true;
}

int64_t SsdTier::EnoughRows(const ShardSegments& own) const {
  return std::max(kMinChunks * chunk_pages_ * layout_.rows_per_page,
                  own.num_live / kSegmentsOfShard);
}

bool SsdTier::Append(int64_t shard, const std::byte* row, Purpose purpose,
                     Location* location) {
  if (has_error_.load(std::memory_order_relaxed)) return false;
  ShardSegments& own = shards_[static_cast<size_t>(shard)];
  const bool compacts = purpose == Purpose::kCompaction;
  const int64_t spare = compacts ? 0 : spare_bytes_;
  OpenSegment* open = &own.open[0];
  // Where there is no room for more of it, what moves goes to the other one.
  if (compacts &&
      (own.open[1].segment != nullptr ||
       StartSegment(&own, shard, spare, &own.open[1])) &&
      own.open[1].segment->MakeRoom(spare)) {
    open = &own.open[1];
  }
  if ((open->segment == nullptr && !StartSegment(&own, shard, spare, open)) ||
      !open->segment->MakeRoom(spare)) {
    is_full_ = true;
    return false;
  }
  const std::shared_ptr<Segment>& segment = open->segment;
  *location = LocationOf(
      open->place, segment->Add(row, cut_, purpose == Purpose::kSnapshot));
  ++own.num_rows;
  ++own.num_live;
  if (purpose == Purpose::kSnapshot) ++rows_saved_;
  std::shared_ptr<Segment::Chunk> chunk = segment->TakeFullChunk();
  if (chunk == nullptr) return true;
  const std::shared_ptr<Segment> filled = segment;
  if (filled->is_full() || (purpose != Purpose::kSnapshot &&
                            filled->num_rows() >= EnoughRows(own))) {
    filled->Seal();
    open->segment.reset();
  }
  // Who evicts is the training itself; the others must not let it wait for the
  // writer with the lock held.
  HandOver(filled, std::move(chunk), purpose == Purpose::kEviction);
  return true;
}

int64_t SsdTier::MaxPendingBytes() const {
  return std::clamp(chunk_pages_ * layout_.page_bytes * 256, kMinPendingBytes,
                    kMaxPendingBytes);
}

void SsdTier::AwaitWriter() {
  std::unique_lock<std::mutex> lock(mutex_);
  written_.wait(lock, [&] { return pending_bytes_ < MaxPendingBytes() / 2; });
}

void SsdTier::HandOver(const std::shared_ptr<Segment>& segment,
                       std::shared_ptr<Segment::Chunk> chunk, bool waits) {
  const int64_t bytes = chunk_pages_ * layout_.page_bytes;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (waits) {
      written_.wait(lock, [&] { return pending_bytes_ < MaxPendingBytes(); });
    }
    pending_bytes_ += bytes;
  }
  writer_.Add([this, segment, chunk = std::move(chunk), bytes] {
    // After an error, rows stay where they are: in memory.
    if (!has_error_) {
      Status status = segment->Write(*chunk);
      if (status.ok()) rows_written_ += chunk->num_rows;
      if (!status.ok()) SetError(std::move(status));
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      pending_bytes_ -= bytes;
    }
    written_.notify_all();
  });
}

void SsdTier::SetError(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = std::move(status);
  has_error_ = true;
}

Status SsdTier::error() const {
  if (!has_error_.load()) return Status::Ok();
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void SsdTier::FinishWrites() {
  // Not until the writer is idle: the training may never let it be.
  bool done = false;
  writer_.Add([&] {
    std::lock_guard<std::mutex> lock(mutex_);
    done = true;
    written_.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  written_.wait(lock, [&] { return done; });
}

void SsdTier::Seal(int64_t shard) {
  ShardSegments& own = shards_[static_cast<size_t>(shard)];
  for (OpenSegment& open : own.open) SealOpen(&own, &open);
}

void SsdTier::SealOpen(ShardSegments* own, OpenSegment* open) {
  if (open->segment == nullptr) return;
  const std::shared_ptr<Segment> segment = std::move(open->segment);
  open->segment.reset();
  std::shared_ptr<Segment::Chunk> chunk = segment->Seal();
  if (chunk != nullptr) HandOver(segment, std::move(chunk), /*waits=*/false);
  if (segment->num_live() == 0) GiveUp(own, open->place);
}

void SsdTier::GiveUp(ShardSegments* own, size_t place) {
  std::shared_ptr<Segment>& segment = own->segments[place];
  own->num_rows -= segment->num_rows();
  if (cut_ != 0) own->at_cut.push_back(segment);
  segment.reset();
  own->free_places.push_back(place);
}

void SsdTier::Drop(int64_t shard, Location location, Purpose purpose) {
  ShardSegments& own = shards_[static_cast<size_t>(shard)];
  const auto place = static_cast<size_t>(location / layout_.capacity());
  Segment* const segment = own.segments[place].get();
  segment->ClearLive(location % layout_.capacity(), cut_,
                     purpose == Purpose::kSnapshot);
  --own.num_live;
  if (segment->is_sealed()) {
    if (segment->num_live() == 0) GiveUp(&own, place);
  } else if (IsStale(*segment) &&
             segment->num_rows() >=
                 kMinChunks * chunk_pages_ * layout_.rows_per_page) {
    // Only then it can be compacted.
    SealOpen(&own, &own.open[own.open[1].segment.get() == segment ? 1 : 0]);
  }
  if (own.is_stale() && on_stale_ != nullptr) on_stale_(shard);
}

void SsdTier::BeginCut() {
  cut_ = next_cut_++;
  for (ShardSegments& own : shards_) own.at_cut = own.segments;
}

void SsdTier::CutOf(int64_t shard, std::vector<CutSegment>* segments) const {
  const ShardSegments& own = shards_[static_cast<size_t>(shard)];
  std::vector<std::shared_ptr<Segment>> all = own.at_cut;
  all.insert(all.end(), own.segments.begin(), own.segments.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const std::shared_ptr<Segment>& segment : all) {
    if (segment == nullptr) continue;
    const std::vector<uint64_t>& live = segment->live_at(cut_);
    const bool is_empty = std::all_of(live.begin(), live.end(),
                                      [](uint64_t word) { return word == 0; });
    if (!is_empty) segments->push_back({segment, segment->num_rows(), live});
  }
}

void SsdTier::EndCut() {
  cut_ = 0;
  for (ShardSegments& own : shards_) own.at_cut.clear();
}

void SsdTier::Clear(int64_t shard) {
  ShardSegments& own = shards_[static_cast<size_t>(shard)];
  own = ShardSegments();
}

std::shared_ptr<Segment> SsdTier::FindStale(int64_t shard, bool any,
                                            size_t* place) const {
  const ShardSegments& own = shards_[static_cast<size_t>(shard)];
  std::shared_ptr<Segment> best;
  if (!any && !own.is_stale()) return best;
  for (size_t p = 0; p < own.segments.size(); ++p) {
    const std::shared_ptr<Segment>& segment = own.segments[p];
    if (segment == nullptr || !segment->is_sealed() || !segment->is_written()) {
      continue;
    }
    if (any ? segment->num_live() == segment->num_rows() : !IsStale(*segment)) {
      continue;
    }
    if (best == nullptr || segment->num_live() * best->num_rows() <
                               best->num_live() * segment->num_rows()) {
      best = segment;
      *place = p;
    }
  }
  return best;
}

}  // namespace tfctr
