// How an SsdTier reads: neighbours together, and many at once.

#include <algorithm>
#include <cstring>
#include <utility>

#include "tfctr_ops/cc/store/io_pool.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {
namespace {

// Rows closer than this are read together, up to this much at once.
constexpr int64_t kMaxGap = 2048;
constexpr int64_t kMaxRun = int64_t{64} << 10;
// A thread that waits for one page could have read about so many rows from the
// page cache.
constexpr int64_t kRowsPerWait = 64;

void SortByPlace(std::vector<SsdTier::Read>* reads) {
  std::sort(reads->begin(), reads->end(),
            [](const SsdTier::Read& a, const SsdTier::Read& b) {
              const uint64_t x = a.segment->number(), y = b.segment->number();
              return x != y ? x < y : a.offset < b.offset;
            });
}

}  // namespace

SsdTier::Read SsdTier::Prepare(int64_t shard, Location location,
                               std::byte* to) const {
  const ShardSegments& own = shards_[static_cast<size_t>(shard)];
  const std::shared_ptr<Segment>& segment =
      own.segments[static_cast<size_t>(location / layout_.capacity())];
  const int64_t row = location % layout_.capacity();
  if (segment->CopyFromMemory(row, to)) return {nullptr, 0, to, nullptr};
  const int64_t offset = layout_.RowOffset(row);
  const std::byte* file = direct_reads_ ? nullptr : segment->Mapped();
  return {segment, offset, to, file == nullptr ? nullptr : file + offset};
}

Status SsdTier::CheckRead(const Read& read, std::byte* row) const {
  uint32_t stored, computed;
  if (OpenRow(row, layout_.row_bytes, &stored, &computed)) return Status::Ok();
  return Damaged(read.segment->path(), read.offset, "row", stored, computed);
}

Status SsdTier::ReadRun(const std::vector<Read>& reads, size_t begin,
                        size_t end, bool only_cached, bool* done) const {
  static thread_local std::vector<std::byte> buffer;
  const int64_t row_bytes = layout_.row_bytes;
  Segment* const segment = reads[begin].segment.get();
  int64_t offset = reads[begin].offset;
  int64_t size = reads[end - 1].offset + row_bytes - offset;
  std::byte* to = reads[begin].to;
  if (direct_reads_) {
    constexpr int64_t kSector = SegmentLayout::kSector;
    size += offset % kSector;
    offset -= offset % kSector;
    size = (size + kSector - 1) / kSector * kSector;
    buffer.resize(static_cast<size_t>(size + kSector));
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    to = buffer.data() + (kSector - address % kSector) % kSector;
  } else if (end - begin > 1) {
    buffer.resize(static_cast<size_t>(size));
    to = buffer.data();
  }
  *done = true;
  Status status;
  if (direct_reads_) {
    status = segment->ReadDirect(offset, size, to);
  } else if (only_cached) {
    status = segment->ReadCached(offset, size, to, done);
  } else {
    status = segment->Read(offset, size, to);
  }
  if (!status.ok() || !*done) return status;
  for (size_t i = begin; i < end; ++i) {
    const std::byte* from = to + (reads[i].offset - offset);
    if (from != reads[i].to) {
      std::memcpy(reads[i].to, from, static_cast<size_t>(row_bytes));
    }
    status = CheckRead(reads[i], reads[i].to);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

size_t SsdTier::EndOfRun(const std::vector<Read>& reads, size_t begin) const {
  size_t end = begin + 1;
  while (end < reads.size() && reads[end].segment == reads[begin].segment &&
         reads[end].offset <=
             reads[end - 1].offset + layout_.row_bytes + kMaxGap &&
         reads[end].offset - reads[begin].offset < kMaxRun) {
    ++end;
  }
  return end;
}

Status SsdTier::CopyMapped(std::vector<Read>* reads) {
  const auto is_mapped = [](const Read& read) {
    return read.mapped != nullptr;
  };
  const auto end = std::partition(reads->begin(), reads->end(), is_mapped);
  const auto n = static_cast<int64_t>(end - reads->begin());
  if (n == 0) return Status::Ok();
  struct Copies {
    const Read* reads;
    int64_t n;
    int64_t row_bytes;
  } copies = {reads->data(), n, layout_.row_bytes};
  const int64_t faults_before = MajorFaults();
  const bool all_copied = RunGuarded(
      [](void* argument) {
        constexpr int64_t kAhead = 8;
        const Copies& all = *static_cast<Copies*>(argument);
        for (int64_t i = 0; i < all.n; ++i) {
          if (i + kAhead < all.n) {
            RowLayout::Prefetch(all.reads[i + kAhead].mapped, all.row_bytes);
          }
          std::memcpy(all.reads[i].to, all.reads[i].mapped,
                      static_cast<size_t>(all.row_bytes));
        }
      },
      &copies);
  const int64_t faults = MajorFaults() - faults_before;
  NoteCached(n, faults);
  // What failed is read once more, by calls that tell what is wrong.
  if (!all_copied) return Status::Ok();
  for (int64_t i = 0; i < n; ++i) {
    const Read& read = (*reads)[static_cast<size_t>(i)];
    Status status = CheckRead(read, read.to);
    if (!status.ok()) return status;
  }
  rows_read_ += n;
  reads->erase(reads->begin(), end);
  return Status::Ok();
}

void SsdTier::NoteCached(int64_t n, int64_t num_waits) {
  constexpr int64_t kEnough = int64_t{1} << 16;
  constexpr int64_t kFewWaits = 16;
  const int64_t waits = rows_waited_ += num_waits;
  const int64_t tried = rows_tried_ += n;
  if ((waits - kFewWaits) * kRowsPerWait > tried) is_warm_ = false;
  if (tried < kEnough) return;
  is_warm_ = waits * kRowsPerWait < tried;
  rows_waited_ = 0;
  rows_tried_ = 0;
}

Status SsdTier::ReadCached(std::vector<Read>* reads) {
  if (direct_reads_ || reads->empty()) return Status::Ok();
  if (is_warm_) {
    Status status = CopyMapped(reads);
    if (!status.ok() || reads->empty()) return status;
  }
  SortByPlace(reads);
  size_t num_left = 0;
  for (size_t begin = 0, end; begin < reads->size(); begin = end) {
    end = EndOfRun(*reads, begin);
    bool done = false;
    Status status = ReadRun(*reads, begin, end, /*only_cached=*/true, &done);
    if (!status.ok()) return status;
    if (done) {
      rows_read_ += static_cast<int64_t>(end - begin);
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      // Moved onto itself, a segment would be gone.
      if (num_left != i) (*reads)[num_left] = std::move((*reads)[i]);
      ++num_left;
    }
  }
  NoteCached(static_cast<int64_t>(reads->size()),
             static_cast<int64_t>(num_left));
  reads->resize(num_left);
  return Status::Ok();
}

Status SsdTier::ReadAll(std::vector<Read>* reads) {
  if (reads->empty()) return Status::Ok();
  SortByPlace(reads);
  std::vector<size_t> starts;
  for (size_t begin = 0; begin < reads->size();
       begin = EndOfRun(*reads, begin)) {
    starts.push_back(begin);
  }
  const auto num_runs = static_cast<int64_t>(starts.size());
  starts.push_back(reads->size());
  std::mutex mutex;
  Status first_error;
  IoPool::Shared()->ParallelFor(num_runs, [&](int64_t run) {
    const auto r = static_cast<size_t>(run);
    bool done = false;
    Status status = ReadRun(*reads, starts[r], starts[r + 1],
                            /*only_cached=*/false, &done);
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (first_error.ok()) first_error = std::move(status);
  });
  rows_read_ += static_cast<int64_t>(reads->size());
  return first_error;
}

Status SsdTier::CopyPages(Segment* segment, int64_t first_page,
                          int64_t num_pages, std::byte* to) const {
  const int64_t used =
      (segment->num_rows() + layout_.rows_per_page - 1) / layout_.rows_per_page;
  const int64_t end = std::min(used, first_page + num_pages);
  const int64_t in_file = std::clamp(segment->written_pages(), first_page, end);
  for (int64_t page = in_file; page < end; ++page) {
    segment->CopyPageFromMemory(page,
                                to + (page - first_page) * layout_.page_bytes);
  }
  if (in_file == first_page) return Status::Ok();
  return ReadPages(segment, first_page, in_file - first_page, to);
}

Status SsdTier::ReadPages(Segment* segment, int64_t first_page,
                          int64_t num_pages, std::byte* to) const {
  Status status = segment->Read(layout_.PageOffset(first_page),
                                num_pages * layout_.page_bytes, to);
  for (int64_t p = 0; status.ok() && p < num_pages; ++p) {
    status = CheckPage(layout_, first_page + p, segment->path(),
                       to + p * layout_.page_bytes);
  }
  return status;
}

}  // namespace tfctr
