#include "tfctr_ops/cc/store/ram_tier.h"

#include <algorithm>

namespace tfctr {

RamTier::RamTier(const RowLayout& layout, int64_t chunk_bytes, Arena* arena)
    : row_bytes_(layout.row_bytes()), arena_(arena) {
  // A power of two, so that a slot splits into chunk and place by its bits.
  chunk_shift_ = 0;
  while ((row_bytes_ << (chunk_shift_ + 1)) <= chunk_bytes) ++chunk_shift_;
  chunk_mask_ = (1U << chunk_shift_) - 1;
}

uint32_t RamTier::Allocate() {
  uint32_t slot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = static_cast<uint32_t>(num_slots_);
    if ((slot & chunk_mask_) == 0) {
      chunks_.reserve(chunks_.size() + 1);
      // So that giving a slot back never needs memory.
      free_.reserve((chunks_.size() + 1) << chunk_shift_);
      chunks_.push_back(arena_->Allocate(row_bytes_ << chunk_shift_));
    }
    ++num_slots_;
  }
  Header(slot)->live = 1;
  return slot;
}

void RamTier::Free(uint32_t slot) {
  Header(slot)->live = 0;
  free_.push_back(slot);
}

}  // namespace tfctr
