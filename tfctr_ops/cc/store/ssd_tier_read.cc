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
// Runs of cached rows that a thread reads in one task.
constexpr int64_t kRunsAtOnce = 64;

}  // namespace

SsdTier::Read SsdTier::Prepare(int64_t shard, Location location,
                               std::byte* to) const {
  const ShardSegments& own = shards_[static_cast<size_t>(shard)];
  const std::shared_ptr<Segment>& segment =
      own.segments[static_cast<size_t>(location / layout_.capacity())];
  const int64_t row = location % layout_.capacity();
  if (segment->CopyFromMemory(row, to)) return {nullptr, 0, to};
  return {segment, layout_.RowOffset(row), to};
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

Status SsdTier::ReadAll(std::vector<Read>* reads, Executor* executor) {
  const auto end =
      std::remove_if(reads->begin(), reads->end(),
                     [](const Read& read) { return read.segment == nullptr; });
  reads->erase(end, reads->end());
  if (reads->empty()) return Status::Ok();
  std::sort(reads->begin(), reads->end(), [](const Read& a, const Read& b) {
    const uint64_t x = a.segment->number(), y = b.segment->number();
    return x != y ? x < y : a.offset < b.offset;
  });
  std::vector<size_t> starts;
  for (size_t i = 0; i < reads->size(); ++i) {
    const Read& read = (*reads)[i];
    if (i > 0) {
      const Read& before = (*reads)[i - 1];
      const Read& first = (*reads)[starts.back()];
      if (read.segment == before.segment &&
          read.offset <= before.offset + layout_.row_bytes + kMaxGap &&
          read.offset - first.offset < kMaxRun) {
        continue;
      }
    }
    starts.push_back(i);
  }
  const auto num_runs = static_cast<int64_t>(starts.size());
  starts.push_back(reads->size());

  std::mutex mutex;
  Status first_error;
  const auto read_run = [&](int64_t run, bool only_cached) {
    bool done = false;
    const auto r = static_cast<size_t>(run);
    Status status =
        ReadRun(*reads, starts[r], starts[r + 1], only_cached, &done);
    if (!status.ok()) {
      std::lock_guard<std::mutex> lock(mutex);
      if (first_error.ok()) first_error = std::move(status);
    }
    return done;
  };
  // What the system has in memory is read at once on the caller's threads; only
  // the rest is worth the many threads that wait for a disk.
  std::vector<uint8_t> done(static_cast<size_t>(num_runs), 0);
  if (!direct_reads_) {
    const int64_t num_tasks = (num_runs + kRunsAtOnce - 1) / kRunsAtOnce;
    executor->ParallelFor(num_tasks, [&](int64_t task) {
      const int64_t limit = std::min(num_runs, (task + 1) * kRunsAtOnce);
      for (int64_t run = task * kRunsAtOnce; run < limit; ++run) {
        done[static_cast<size_t>(run)] = read_run(run, /*only_cached=*/true);
      }
    });
  }
  std::vector<int64_t> left;
  for (int64_t run = 0; run < num_runs; ++run) {
    if (!done[static_cast<size_t>(run)]) left.push_back(run);
  }
  IoPool::Shared()->ParallelFor(
      static_cast<int64_t>(left.size()), [&](int64_t i) {
        read_run(left[static_cast<size_t>(i)], /*only_cached=*/false);
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
