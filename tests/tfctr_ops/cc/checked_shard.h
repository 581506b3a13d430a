// CheckedShard: a shard of an SSD tier beside a map that is told the same, and
// what else the tests of the tier share.

#ifndef TESTS_TFCTR_OPS_CC_CHECKED_SHARD_H_
#define TESTS_TFCTR_OPS_CC_CHECKED_SHARD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {
namespace testing {

using Bytes = std::vector<std::byte>;

inline SsdOptions In(const TemporaryDirectory& directory,
                     int64_t limit_bytes = -1) {
  SsdOptions options;
  options.directory = directory.path();
  options.limit_bytes = limit_bytes;
  return options;
}

inline std::unique_ptr<SsdTier> Open(const SsdOptions& options, int64_t dim = 4,
                                     int64_t num_shards = 1) {
  std::unique_ptr<SsdTier> tier;
  CHECK_OK(SsdTier::Open(options, RowLayout(dim, 0), num_shards, &tier));
  return tier;
}

// Of all files below; some may vanish while they are counted.
inline int64_t BytesIn(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto size = entry.file_size(error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

inline std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The files of the segments.
inline std::vector<std::string> FilesOf(const SsdTier& tier) {
  std::vector<std::string> names = NamesIn(tier.directory());
  names.erase(std::remove(names.begin(), names.end(), "LOCK"), names.end());
  return names;
}

inline Bytes RandomRow(int64_t row_bytes, Random* random) {
  Bytes row(static_cast<size_t>(row_bytes));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random->Below(256));
  RowHeader* header = RowLayout::Header(row.data());
  header->known = 1;
  header->live = 1;
  header->score = 0;
  header->dirty = 0;
  header->mark = 0;
  return row;
}

// One shard of a tier beside a map that is told the same. It looks after its
// segments as a store does.
class CheckedShard {
 public:
  CheckedShard(SsdTier* tier, int64_t shard)
      : tier_(*tier),
        shard_(shard),
        random_(static_cast<uint64_t>(shard) + 1) {}

  // Gives the key a new row; false if there is no room.
  bool TryPut(int64_t key) {
    const Bytes row = RandomRow(tier_.layout().row_bytes, &random_);
    Location location = kNowhere;
    if (!tier_.Append(shard_, row.data(), SsdTier::Purpose::kEviction,
                      &location)) {
      return false;
    }
    Remove(key);
    Set(key, row, location);
    return true;
  }
  void Put(int64_t key) { CHECK(TryPut(key)); }

  void Remove(int64_t key) {
    const auto it = rows_.find(key);
    if (it == rows_.end()) return;
    tier_.Drop(shard_, it->second.second, SsdTier::Purpose::kEviction);
    keys_.erase(it->second.second);
    rows_.erase(it);
  }

  void RemoveAll() {
    while (!rows_.empty()) Remove(rows_.begin()->first);
  }

  // Moves the rows of the stalest segment, if there is one.
  bool Compact(bool any) {
    const SegmentLayout& layout = tier_.layout();
    size_t place = 0;
    const std::shared_ptr<Segment> segment =
        tier_.FindStale(shard_, any, &place);
    if (segment == nullptr) return false;
    const int64_t num_pages =
        (segment->num_rows() + layout.rows_per_page - 1) / layout.rows_per_page;
    const AlignedBytes pages(num_pages * layout.page_bytes);
    CHECK_OK(tier_.ReadPages(segment.get(), 0, num_pages, pages.data()));
    const int64_t num_rows = segment->num_rows();
    for (int64_t r = 0; r < num_rows; ++r) {
      const Location from = tier_.LocationOf(place, r);
      CHECK_EQ(keys_.count(from) == 1, segment->is_live(r));
      if (!segment->is_live(r)) continue;
      Location to = kNowhere;
      CHECK(tier_.Append(shard_, pages.data() + layout.InPages(r),
                         SsdTier::Purpose::kCompaction, &to));
      tier_.Drop(shard_, from, SsdTier::Purpose::kCompaction);
      const int64_t key = keys_.at(from);
      keys_.erase(from);
      Set(key, rows_.at(key).first, to);
    }
    CHECK(tier_.segments(shard_)[place] != segment);
    return true;
  }

  Status TryRead(const std::set<int64_t>& keys) {
    std::vector<Bytes> got(keys.size(), Bytes(row_bytes()));
    std::vector<SsdTier::Read> reads;
    size_t i = 0;
    for (const int64_t key : keys) {
      SsdTier::Read read =
          tier_.Prepare(shard_, rows_.at(key).second, got[i++].data());
      in_memory_ += read.segment == nullptr;
      if (read.segment != nullptr) reads.push_back(std::move(read));
    }
    random_.Shuffle(&reads);
    Status status;
    // As a store does it; ReadAll alone must give the same.
    if (random_.Below(2) == 0) status = tier_.ReadCached(&reads);
    if (status.ok()) status = tier_.ReadAll(&reads);
    if (!status.ok()) return status;
    i = 0;
    for (const int64_t key : keys) CHECK(got[i++] == rows_.at(key).first);
    return status;
  }

  void CheckSome(int64_t n) {
    std::set<int64_t> keys;
    for (int64_t i = 0; i < n && !rows_.empty(); ++i) {
      auto it = rows_.lower_bound(random_.Below(rows_.rbegin()->first + 1));
      keys.insert(it->first);
    }
    CHECK_OK(TryRead(keys));
  }

  void CheckAll() {
    CHECK_EQ(tier_.num_live(shard_), size());
    std::set<int64_t> keys;
    for (const auto& [key, row] : rows_) keys.insert(key);
    CHECK_OK(TryRead(keys));
    CheckPages();
  }

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  size_t row_bytes() const {
    return static_cast<size_t>(tier_.layout().row_bytes);
  }
  // How many rows were read without the file.
  int64_t in_memory() const { return in_memory_; }
  Location location(int64_t key) const { return rows_.at(key).second; }

 private:
  void Set(int64_t key, const Bytes& row, Location location) {
    CHECK(keys_.emplace(location, key).second);
    rows_[key] = {row, location};
  }

  // The same rows, page by page.
  void CheckPages() {
    const SegmentLayout& layout = tier_.layout();
    std::vector<std::shared_ptr<Segment>> segments = tier_.segments(shard_);
    const AlignedBytes pages(2 * layout.page_bytes);
    int64_t num_live = 0;
    for (size_t place = 0; place < segments.size(); ++place) {
      if (segments[place] == nullptr) continue;
      const int64_t num_rows = segments[place]->num_rows();
      for (int64_t first = 0; first < num_rows;
           first += 2 * layout.rows_per_page) {
        CHECK_OK(tier_.CopyPages(segments[place].get(),
                                 first / layout.rows_per_page, 2,
                                 pages.data()));
        const int64_t end = first + 2 * layout.rows_per_page;
        for (int64_t r = first; r < std::min(num_rows, end); ++r) {
          if (!segments[place]->is_live(r)) continue;
          ++num_live;
          std::byte* row = pages.data() + layout.InPages(r - first);
          RowLayout::Header(row)->mark = 0;
          const int64_t key = keys_.at(tier_.LocationOf(place, r));
          CHECK(std::equal(row, row + layout.row_bytes,
                           rows_.at(key).first.begin()));
        }
      }
    }
    CHECK_EQ(num_live, size());
  }

  SsdTier& tier_;
  const int64_t shard_;
  Random random_;
  std::map<int64_t, std::pair<Bytes, Location>> rows_;
  std::map<Location, int64_t> keys_;
  int64_t in_memory_ = 0;
};

// Whether files there can be read past the page cache.
inline bool HasDirectReads(const TemporaryDirectory& directory) {
  const std::string path = directory.path() + "/file";
  std::unique_ptr<File> file;
  CHECK_OK(FileSystem::Posix()->Open(path, FileSystem::Mode::kCreate, &file));
  return FileSystem::Posix()
      ->Open(path, FileSystem::Mode::kReadDirect, &file)
      .ok();
}

// Segments of four rows, one in a page.
inline constexpr int64_t kPageDim = 1000;
inline SsdOptions FourRows(const TemporaryDirectory& directory) {
  return In(directory, 40 * 4096);
}

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_CHECKED_SHARD_H_
