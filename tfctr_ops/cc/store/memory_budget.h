// MemoryBudget: how many bytes of rows may be in memory. Stores that are given
// the same budget share it.
//
// Thread safety: every method may be called concurrently.

#ifndef TFCTR_OPS_CC_STORE_MEMORY_BUDGET_H_
#define TFCTR_OPS_CC_STORE_MEMORY_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tfctr {

class MemoryBudget {
 public:
  // `limit_bytes` < 0 means no limit.
  explicit MemoryBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  bool is_limited() const { return limit_bytes_ >= 0; }
  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t used_bytes() const {
    return used_bytes_.load(std::memory_order_relaxed);
  }

  // Takes as many whole units of `unit_bytes` as are left, at most `wanted`;
  // returns how many.
  int64_t ReserveUpTo(int64_t wanted, int64_t unit_bytes) {
    int64_t used = used_bytes();
    while (true) {
      int64_t granted = wanted;
      if (is_limited()) {
        const int64_t left = std::max<int64_t>(0, limit_bytes_ - used);
        granted = std::min(wanted, left / unit_bytes);
      }
      if (used_bytes_.compare_exchange_weak(used,
                                            used + granted * unit_bytes)) {
        return granted;
      }
    }
  }

  // Takes `bytes`, above the limit if need be.
  void ForceReserve(int64_t bytes) { used_bytes_.fetch_add(bytes); }

  void Release(int64_t bytes) { used_bytes_.fetch_sub(bytes); }

 private:
  const int64_t limit_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_MEMORY_BUDGET_H_
