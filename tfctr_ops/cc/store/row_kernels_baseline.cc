#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/row_layout.h"

#define TFCTR_CPU_LEVEL baseline
#define TFCTR_CPU_LEVEL_NAME "baseline"
#include "tfctr_ops/cc/store/row_kernels_impl.h"
