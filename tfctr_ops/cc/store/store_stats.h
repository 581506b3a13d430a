// What a store tells of itself.

#ifndef TFCTR_OPS_CC_STORE_STORE_STATS_H_
#define TFCTR_OPS_CC_STORE_STORE_STATS_H_

#include <cstdint>

namespace tfctr {

struct StoreStats {
  int64_t rows;             // In memory.
  int64_t known_rows;       // Updated or written at least once, on disk too.
  int64_t row_bytes;        // Of one row.
  int64_t memory_bytes;     // Rows, index and what is reserved for them.
  int64_t evicted_rows;     // That left memory; without an SSD tier, for good.
  int64_t skipped_updates;  // For a bad gradient.
  int64_t expired_rows;     // That were removed by the options' expiry.
  int64_t updated_rows;     // Each in each update.
  int64_t clipped_rows;     // Of these, with a gradient that was clipped.
  // Distinct rows of each lookup, by where it found them; others were refused.
  int64_t found_rows;     // In memory.
  int64_t inserted_rows;  // Nowhere: they were made.
  int64_t promoted_rows;  // On disk.
  // Of admission:
  int64_t refused_keys;     // Of lookups; of equal keys, all.
  int64_t tracked_keys;     // That are counted one by one.
  int64_t admission_bytes;  // Of the counters.
  int64_t step;
  // Of the SSD tier:
  int64_t rows_on_disk_only;
  int64_t disk_bytes;
  int64_t rows_read;
  int64_t rows_written;
  int64_t stalled_lookups;  // That read the disk, or its cache.
  int64_t stalled_nanoseconds;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_STORE_STATS_H_
