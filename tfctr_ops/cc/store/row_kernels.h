// RowKernels: the arithmetic on rows, compiled once per CPU level.
//
// One binary serves every x86-64 machine: the same source (row_kernels_impl.h)
// is compiled for the baseline, for AVX2 and for AVX-512, and the best level
// the processor has is chosen when the library loads. Multiplications and
// additions are never fused, and sums run in one fixed order, so all levels
// give the same bits.

#ifndef TFCTR_OPS_CC_STORE_ROW_KERNELS_H_
#define TFCTR_OPS_CC_STORE_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "tfctr_ops/cc/store/sparse_optimizer.h"

namespace tfctr {

struct RowKernels {
  // What an update did to its rows.
  struct Changes {
    int64_t newly_known;      // How many rows.
    int64_t num_newly_dirty;  // How many i in `newly_dirty`.
    int64_t clipped;          // How many gradients.
  };

  const char* level;

  // Copies `dim` floats from from[i] to rows[positions[i]], for i in [0, n).
  void (*copy)(const float* const* from, const int32_t* positions, int64_t n,
               int64_t dim, float* rows);

  // Adds gradients[positions[i]] to sums[places[i]], for i in [0, n), in order.
  // Rows of `gradients` and `sums` are `dim` floats.
  void (*accumulate)(const float* gradients, const int32_t* positions,
                     const int32_t* places, int64_t n, int64_t dim,
                     float* sums);

  // Updates rows[i] with the summed gradient sums[i], for i in [0, n), and
  // stamps their headers. If the optimizer clips, counts[i] is how many samples
  // have the key; else `counts` may be null. Gradients are clipped in place.
  // `newly_dirty` has room for n.
  Changes (*update)(const SparseOptimizer& optimizer, const UpdateStep& step,
                    int64_t dim, std::byte* const* rows, float* sums,
                    const int64_t* counts, int64_t n, int32_t* newly_dirty);

  // Whether every |values[i]| <= bound; false for NaN.
  bool (*all_within)(const float* values, int64_t n, float bound);
};

// The kernels of the best level this processor has, or of the level that the
// environment variable TFCTR_CPU_LEVEL names ("baseline", "avx2", "avx512") if
// the processor has it.
const RowKernels& BestRowKernels();

// Null if the processor lacks the level.
const RowKernels* FindRowKernels(const char* level);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ROW_KERNELS_H_
