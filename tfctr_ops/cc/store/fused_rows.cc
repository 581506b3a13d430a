#include "tfctr_ops/cc/store/fused_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/row_layout.h"

namespace tfctr {
namespace {

// Rows of one task.
constexpr int64_t kPiece = 2048;
// Rows that are copied to a place with headers at a time: they stay in the
// first cache while they are updated there.
constexpr int64_t kBlock = 64;

// The rows of a block as the kernels want them.
class Block {
 public:
  Block(int64_t dim, int64_t num_slot_floats)
      : layout_(dim, num_slot_floats),
        // Of int64_t, which headers are aligned to.
        bytes_(static_cast<size_t>(layout_.row_bytes() / 8 * kBlock)),
        sums_(static_cast<size_t>(dim * kBlock)) {
    for (int64_t i = 0; i < kBlock; ++i) {
      rows_[i] =
          reinterpret_cast<std::byte*>(bytes_.data()) + i * layout_.row_bytes();
    }
  }

  // Updates `rows` from `start` on, `n` of them, and returns how many gradients
  // were clipped.
  int64_t Update(const SparseOptimizer& optimizer, const UpdateStep& step,
                 const FusedRows& rows, int64_t start, int64_t n,
                 const float* gradients, float* updated) {
    const int64_t dim = layout_.dim();
    const size_t size = static_cast<size_t>(layout_.num_floats()) * 4;
    const int64_t width = layout_.num_floats() + kFusedCounters;
    for (int64_t i = 0; i < n; ++i) {
      RowHeader& header = *RowLayout::Header(rows_[i]);
      header = {};
      header.count = static_cast<uint32_t>(rows.updates[start + i]);
      std::memcpy(RowLayout::Weights(rows_[i]), rows.rows + (start + i) * width,
                  size);
      if (rows.samples != nullptr) samples_[i] = rows.samples[start + i];
    }
    // A copy, since clipping changes it.
    std::copy_n(gradients + start * dim, n * dim, sums_.data());
    const RowKernels::Changes changes = BestRowKernels().update(
        optimizer, step, dim, rows_, sums_.data(), samples_, n, newly_dirty_);
    for (int64_t i = 0; i < n; ++i) {
      float* const to = updated + (start + i) * width;
      std::memcpy(to, RowLayout::Weights(rows_[i]), size);
      const RowHeader& header = *RowLayout::Header(rows_[i]);
      const int32_t counters[kFusedCounters] = {
          rows.features[start + i], static_cast<int32_t>(header.count),
          static_cast<int32_t>(header.last_step)};
      std::memcpy(to + layout_.num_floats(), counters, sizeof(counters));
    }
    return changes.clipped;
  }

 private:
  const RowLayout layout_;
  std::vector<int64_t> bytes_;
  std::vector<float> sums_;
  std::byte* rows_[kBlock];
  int64_t samples_[kBlock];
  int32_t newly_dirty_[kBlock];
};

}  // namespace

int64_t UpdateFusedRows(const SparseOptimizer& optimizer,
                        const UpdateStep& step, int64_t dim,
                        const FusedRows& rows, const float* gradients,
                        Executor* executor, float* updated) {
  std::atomic<int64_t> clipped{0};
  executor->ParallelFor((rows.n + kPiece - 1) / kPiece, [&](int64_t piece) {
    Block block(dim, optimizer.NumSlotFloats(dim));
    const int64_t end = std::min((piece + 1) * kPiece, rows.n);
    for (int64_t start = piece * kPiece; start < end; start += kBlock) {
      const int64_t n = std::min(kBlock, end - start);
      clipped +=
          block.Update(optimizer, step, rows, start, n, gradients, updated);
    }
  });
  return clipped;
}

}  // namespace tfctr
