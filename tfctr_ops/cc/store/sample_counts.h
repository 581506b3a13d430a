// CountSamples: in how many samples the keys of a batch occur.

#ifndef TFCTR_OPS_CC_STORE_SAMPLE_COUNTS_H_
#define TFCTR_OPS_CC_STORE_SAMPLE_COUNTS_H_

#include <cstdint>

#include "tfctr_ops/cc/store/batch.h"
#include "tfctr_ops/cc/store/executor.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// Sets counts[i] to 1 where key i of the batch is the first of its equals that
// stands in sample samples[i], else to 0: over the keys that are equal, they
// add up to the number of samples. Absent keys have 0.
//   samples, counts: (batch.n).
// Returns InvalidArgument if a feature is below -1.
Status CountSamples(const KeyBatch& batch, const int32_t* samples,
                    Executor* executor, int32_t* counts);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SAMPLE_COUNTS_H_
