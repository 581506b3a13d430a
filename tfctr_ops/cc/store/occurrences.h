// Between the rows of the distinct keys of a batch and where they occur in it.

#ifndef TFCTR_OPS_CC_STORE_OCCURRENCES_H_
#define TFCTR_OPS_CC_STORE_OCCURRENCES_H_

#include <cstdint>

#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// Of each occurrence, which of the rows it is of.
struct Occurrences {
  const int32_t* places;  // (n); -1 for none of the rows.
  int64_t n;
  int64_t num_rows;
};

// Copies the first `dim` floats of rows to where they occur; zeros where there
// is no row.
//   rows: (num_rows, width), where width >= dim.
//   gathered: (n, dim).
// Returns InvalidArgument if a place is neither -1 nor that of a row.
Status GatherWeights(const Occurrences& occurrences, const float* rows,
                     int64_t width, int64_t dim, Executor* executor,
                     float* gathered);

// Adds up the gradients of each row in the order of the batch: the same bits
// for any number of threads.
//   gradients: (n, dim).
//   sums: (num_rows, dim).
void SumGradients(const Occurrences& occurrences, const float* gradients,
                  int64_t dim, Executor* executor, float* sums);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_OCCURRENCES_H_
