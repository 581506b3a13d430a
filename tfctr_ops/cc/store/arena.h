// Arena: memory for one table's rows and index, in blocks backed by huge pages.
//
// Pieces are never given back to the system before the arena dies: the tiers
// keep their own free lists. Arenas of different NUMA nodes keep tables apart
// that different processes, or sockets, work on. Thread safety: Allocate may be
// called from any thread.

#ifndef TFCTR_OPS_CC_STORE_ARENA_H_
#define TFCTR_OPS_CC_STORE_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tfctr_ops/cc/store/numa_node.h"

namespace tfctr {

class Arena {
 public:
  // REQUIRES: CheckNumaNode accepts the node.
  explicit Arena(int64_t numa_node = kAnyNumaNode) : numa_node_(numa_node) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns `bytes` zeroed bytes, aligned to a cache line. Throws
  // std::bad_alloc when the system has no memory left.
  std::byte* Allocate(int64_t bytes);

  // Bytes handed out so far.
  int64_t allocated_bytes() const {
    return allocated_bytes_.load(std::memory_order_relaxed);
  }

 private:
  struct Block {
    std::byte* mapping;
    size_t mapping_bytes;
  };

  void AddBlock(size_t min_bytes);

  const int64_t numa_node_;
  std::atomic<int64_t> allocated_bytes_{0};
  std::mutex mutex_;
  std::vector<Block> blocks_;  // Guarded by mutex_, as all below.
  std::byte* next_ = nullptr;  // The free rest of the newest block.
  std::byte* limit_ = nullptr;
  size_t next_block_bytes_ = size_t{2} << 20;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ARENA_H_
