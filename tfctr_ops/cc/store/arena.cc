#include "tfctr_ops/cc/store/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tfctr {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Blocks double up to this size: few mappings for a large table, little address
// space for a small one.
constexpr size_t kMaxBlock = size_t{64} << 20;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Arena::~Arena() {
  for (const Block& block : blocks_) munmap(block.mapping, block.mapping_bytes);
}

std::byte* Arena::Allocate(int64_t bytes) {
  const size_t size = RoundUp(static_cast<size_t>(bytes), kCacheLine);
  std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<size_t>(limit_ - next_) < size) AddBlock(size);
  std::byte* piece = next_;
  next_ += size;
  allocated_bytes_.fetch_add(static_cast<int64_t>(size),
                             std::memory_order_relaxed);
  return piece;
}

void Arena::AddBlock(size_t min_bytes) {
  const size_t size =
      RoundUp(std::max(min_bytes, next_block_bytes_), kHugePage);
  next_block_bytes_ = std::min(kMaxBlock, next_block_bytes_ * 2);
  // One huge page more than needed, so that the block can start on a huge page.
  const size_t mapped = size + kHugePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  std::byte* start = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<uintptr_t>(mapping), kHugePage));
  // Without leave to choose, the thread that touches a page first decides.
  if (numa_node_ != kAnyNumaNode) PreferNumaNode(start, size, numa_node_);
  // Rows are touched at random: with 4 KiB pages every touch would also miss in
  // the address translation. Only advice, so a refusal is no error.
  madvise(start, size, MADV_HUGEPAGE);
  blocks_.push_back({static_cast<std::byte*>(mapping), mapped});
  next_ = start;
  limit_ = start + size;
}

}  // namespace tfctr
