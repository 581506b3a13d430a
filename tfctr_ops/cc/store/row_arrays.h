// RowArrays: whole rows outside of a store.

#ifndef TFCTR_OPS_CC_STORE_ROW_ARRAYS_H_
#define TFCTR_OPS_CC_STORE_ROW_ARRAYS_H_

#include <cstdint>

namespace tfctr {

// Whole rows, column by column.
struct RowArrays {
  int64_t* ids;         // (n)
  int32_t* features;    // (n)
  float* floats;        // (n, num_floats): weights, then slots
  int64_t* last_steps;  // (n)
  int64_t* counts;      // (n)
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ROW_ARRAYS_H_
