// Removes rows that have served their time. Rows on disk are looked at by
// reading the segments in their order, and do not come up.

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

// Pages that are read at once.
constexpr int64_t kPagesAtOnce = 64;

// Settles who leaves first of rows with the same last update: by the key and
// the seed of its feature, so that neither shards nor a restore change it.
uint64_t TieBreak(uint64_t seed, int64_t id) {
  return Mix64(seed ^ Mix64(static_cast<uint64_t>(id)));
}

// The `limit` least of many numbers, in memory for little more than these.
class LeastNumbers {
 public:
  explicit LeastNumbers(int64_t limit) : limit_(static_cast<size_t>(limit)) {}

  void Add(const std::vector<uint64_t>& numbers) {
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    if (numbers_.size() <= limit_) return;
    std::nth_element(numbers_.begin(), At(limit_), numbers_.end());
    numbers_.resize(limit_);
  }
  // The n-th least, and how many are less. REQUIRES: 1 <= n <= limit.
  uint64_t Nth(int64_t n, int64_t* num_less) {
    std::nth_element(numbers_.begin(), At(static_cast<size_t>(n - 1)),
                     numbers_.end());
    const uint64_t nth = numbers_[static_cast<size_t>(n - 1)];
    *num_less = std::count_if(numbers_.begin(), numbers_.end(),
                              [&](uint64_t number) { return number < nth; });
    return nth;
  }

 private:
  std::vector<uint64_t>::iterator At(size_t i) {
    return numbers_.begin() + static_cast<std::ptrdiff_t>(i);
  }

  const size_t limit_;
  std::vector<uint64_t> numbers_;
};

}  // namespace

bool EmbeddingStore::IsExpired(const KnownRow& row) const {
  const ExpiryOptions& rule = options_.expiry;
  const int64_t unused = step_ - row.last_step;
  if (rule.unused_steps >= 0 && unused > rule.unused_steps) return true;
  if (rule.min_norm <= 0) return false;
  double square = 0;
  for (int64_t c = 0; c < layout_.dim(); ++c) {
    square += static_cast<double>(row.weights[c]) * row.weights[c];
  }
  return square < rule.min_norm * rule.min_norm;
}

Status EmbeddingStore::VisitKnownRows(
    int64_t s, const std::function<void(const KnownRow&)>& visit) {
  const auto known_row = [s](std::byte* row, uint32_t slot, Location location) {
    const RowHeader& header = *RowLayout::Header(row);
    return KnownRow{s,    header.id, header.feature,         header.last_step,
                    slot, location,  RowLayout::Weights(row)};
  };
  const RamTier& rows = shard(s).rows();
  for (int64_t i = 0; i < rows.num_slots(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    const RowHeader& header = *rows.Header(slot);
    if (!header.live || !header.known) continue;
    visit(known_row(rows.Row(slot), slot, kNowhere));
  }
  if (ssd_ == nullptr) return Status::Ok();
  const SegmentLayout& layout = ssd_->layout();
  const AlignedBytes pages(kPagesAtOnce * layout.page_bytes);
  const int64_t rows_at_once = kPagesAtOnce * layout.rows_per_page;
  for (size_t place = 0; place < ssd_->segments(s).size(); ++place) {
    // Kept, since its last row may leave.
    const std::shared_ptr<Segment> segment = ssd_->segments(s)[place];
    if (segment == nullptr) continue;
    for (int64_t first = 0;
         first < segment->num_rows() && segment->num_live() > 0;
         first += rows_at_once) {
      Status status =
          ssd_->CopyPages(segment.get(), first / layout.rows_per_page,
                          kPagesAtOnce, pages.data());
      if (!status.ok()) return status;
      const int64_t end = std::min(segment->num_rows(), first + rows_at_once);
      for (int64_t r = first; r < end; ++r) {
        if (!segment->is_live(r)) continue;
        std::byte* row = pages.data() + layout.InPages(r - first);
        const Location location = ssd_->LocationOf(place, r);
        if (!shard(s).IsOnDiskOnly(row, location)) continue;
        visit(known_row(row, Shard::kNoSlot, location));
      }
    }
  }
  return Status::Ok();
}

void EmbeddingStore::Remove(const KnownRow& row) {
  if (row.slot == Shard::kNoSlot) {
    shard(row.shard).ReleaseOnDisk(row.feature, row.id, row.location);
  } else {
    shard(row.shard).Release(row.slot);
    budget_->Release(layout_.row_bytes());
  }
}

Status EmbeddingStore::Expire(Executor* executor, int64_t* removed) {
  *removed = 0;
  if (!options_.expiry.is_on()) {
    return Status::FailedPrecondition(
        "Table '" + options_.name +
        "' was made without a rule of expiry. Say which rows shall leave: "
        "TableConfig(expiry=Expiry(unused_steps=...)).");
  }
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  Status status = FlushLocked(executor);
  return status.ok() ? ExpireLocked(executor, removed) : status;
}

// A first look removes what is expired by itself, and finds how old a row must
// be to leave since there are too many; a second look removes those.
Status EmbeddingStore::ExpireLocked(Executor* executor, int64_t* removed) {
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  const int64_t max_rows = options_.expiry.max_rows;
  const auto tie_break = [this](const KnownRow& row) {
    return TieBreak(options_.feature_seeds[row.feature], row.id);
  };
  // Less for rows that leave earlier; nearly always another for another row.
  const auto age_of = [&](const KnownRow& row) {
    return static_cast<uint64_t>(row.last_step) << 32 | tie_break(row) >> 32;
  };
  const auto count = [this] {
    int64_t known = 0;
    for (const auto& shard : shards_) known += shard->known();
    return known;
  };
  const int64_t before = count();
  // At most so many are to leave for that reason.
  const int64_t surplus = max_rows < 0 ? 0 : before - max_rows;
  LeastNumbers ages(std::max<int64_t>(0, surplus));
  std::mutex mutex;  // Guards `ages`, `status` and `last`.
  Status status;
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    std::vector<uint64_t> own;
    Status visited = VisitKnownRows(s, [&](const KnownRow& row) {
      if (IsExpired(row)) return Remove(row);
      if (surplus > 0) own.push_back(age_of(row));
    });
    std::lock_guard<std::mutex> lock(mutex);
    ages.Add(own);
    if (!visited.ok()) status = std::move(visited);
  });

  const int64_t excess = max_rows < 0 ? 0 : count() - max_rows;
  if (excess > 0 && status.ok()) {
    int64_t num_less;
    const uint64_t age = ages.Nth(excess, &num_less);
    std::vector<KnownRow> last;  // Of that very age.
    executor->ParallelFor(num_shards(), [&](int64_t s) {
      Status visited = VisitKnownRows(s, [&](const KnownRow& row) {
        if (age_of(row) < age) return Remove(row);
        if (age_of(row) > age) return;
        std::lock_guard<std::mutex> lock(mutex);
        last.push_back(row);
      });
      std::lock_guard<std::mutex> lock(mutex);
      if (!visited.ok()) status = std::move(visited);
    });
    const auto order = [&](const KnownRow& row) {
      return std::make_tuple(tie_break(row), row.id, row.feature);
    };
    std::sort(last.begin(), last.end(),
              [&](const KnownRow& a, const KnownRow& b) {
                return order(a) < order(b);
              });
    for (size_t i = 0;
         status.ok() && i < static_cast<size_t>(excess - num_less); ++i) {
      Remove(last[i]);
    }
  }
  *removed = before - count();
  expired_rows_ += *removed;
  return status;
}

}  // namespace tfctr
