// RamTier: the rows of one shard in memory, addressed by slot.
//
// Slots are numbered from 0 and never move; freed ones are used again. Thread
// safety: none; the shard's lock guards it.

#ifndef TFCTR_OPS_CC_STORE_RAM_TIER_H_
#define TFCTR_OPS_CC_STORE_RAM_TIER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfctr_ops/cc/store/arena.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {

class RamTier {
 public:
  // Rows are allocated in chunks of about `chunk_bytes`. `arena` must outlive
  // the tier.
  RamTier(const RowLayout& layout, int64_t chunk_bytes, Arena* arena);
  RamTier(const RamTier&) = delete;
  RamTier& operator=(const RamTier&) = delete;

  // The tier between two allocations, by value: what a loop can keep in
  // registers.
  struct View {
    std::byte* const* chunks;
    int64_t row_bytes;
    uint32_t chunk_shift;
    uint32_t chunk_mask;

    std::byte* Row(uint32_t slot) const {
      return chunks[slot >> chunk_shift] + (slot & chunk_mask) * row_bytes;
    }
  };
  View view() const {
    return {chunks_.data(), row_bytes_, chunk_shift_, chunk_mask_};
  }

  // REQUIRES: slot < num_slots().
  std::byte* Row(uint32_t slot) const { return view().Row(slot); }
  RowHeader* Header(uint32_t slot) const {
    return RowLayout::Header(Row(slot));
  }

  // Takes a slot for a new row. Its bytes are undefined, but for `live`, which
  // is set.
  uint32_t Allocate();
  // Gives the slot back. REQUIRES: the row is live.
  void Free(uint32_t slot);

  // Live rows.
  int64_t size() const {
    return num_slots_ - static_cast<int64_t>(free_.size());
  }
  // One more than the highest slot ever used.
  int64_t num_slots() const { return num_slots_; }

 private:
  const int64_t row_bytes_;
  uint32_t chunk_shift_;
  uint32_t chunk_mask_;
  Arena* const arena_;
  std::vector<std::byte*> chunks_;
  std::vector<uint32_t> free_;  // Last freed, first used: warm in the cache.
  int64_t num_slots_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_RAM_TIER_H_
