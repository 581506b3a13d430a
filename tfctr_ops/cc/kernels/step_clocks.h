// Where the time of this process' training steps goes, over all tables.

#ifndef TFCTR_OPS_CC_KERNELS_STEP_CLOCKS_H_
#define TFCTR_OPS_CC_KERNELS_STEP_CLOCKS_H_

#include "tfctr_ops/cc/store/busy_clock.h"

namespace tfctr {

struct StepClocks {
  BusyClock lookups;
  BusyClock updates;

  // Never destroyed: threads may still run ops when the process ends.
  static StepClocks* Get() {
    static StepClocks* const clocks = new StepClocks;
    return clocks;
  }
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_KERNELS_STEP_CLOCKS_H_
