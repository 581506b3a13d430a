// What lies where in a row: [header | weights | optimizer slots].
//
// One row holds everything about one key, so a single probe brings it all and a
// weight can never be saved beside the moments of another step.

#ifndef TFCTR_OPS_CC_STORE_ROW_LAYOUT_H_
#define TFCTR_OPS_CC_STORE_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace tfctr {

struct RowHeader {
  int64_t id;
  uint32_t feature : 24;
  // A row is known once it was updated or written. Until then it holds nothing
  // that (seed, key) could not bring back, and readers see the default row.
  uint32_t known : 1;
  uint32_t live : 1;   // False for a free slot.
  uint32_t score : 2;  // Of the eviction policy.
  // Whether the row holds more than its copy on disk; see SsdTier.
  uint32_t dirty : 2;
  uint32_t unused : 2;
  uint32_t last_step;  // Of the last update; 0 if there was none.
  uint32_t count;      // Updates so far; stays at its maximum.
  // Scratch of the batch that holds the shard's lock: the place of this row
  // among the distinct rows of the batch. Meaningless outside. On disk: the
  // checksum of the row.
  uint32_t mark;

  bool Is(uint32_t other_feature, int64_t other_id) const {
    return id == other_id && feature == other_feature && live;
  }
};
static_assert(sizeof(RowHeader) == 24, "The header is part of every row.");

// Features are numbered below this.
constexpr int64_t kMaxFeatures = 1 << 24;

class RowLayout {
 public:
  // REQUIRES: dim >= 1, num_slot_floats >= 0.
  RowLayout(int64_t dim, int64_t num_slot_floats)
      : dim_(dim), num_slot_floats_(num_slot_floats) {}

  int64_t dim() const { return dim_; }
  int64_t num_slot_floats() const { return num_slot_floats_; }
  int64_t num_floats() const { return dim_ + num_slot_floats_; }
  // A multiple of 8, so that headers stay aligned.
  int64_t row_bytes() const {
    const int64_t floats = num_floats() + (num_floats() & 1);
    return static_cast<int64_t>(sizeof(RowHeader)) + floats * 4;
  }

  static RowHeader* Header(std::byte* row) {
    return reinterpret_cast<RowHeader*>(row);
  }
  // Starts loading the first `bytes` of a row.
  static void Prefetch(const std::byte* row, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
    // Rows start anywhere in a cache line.
    __builtin_prefetch(row + bytes - 1);
  }
  // Weights, followed by the slots.
  static float* Weights(std::byte* row) {
    return reinterpret_cast<float*>(row + sizeof(RowHeader));
  }

 private:
  const int64_t dim_;
  const int64_t num_slot_floats_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ROW_LAYOUT_H_
