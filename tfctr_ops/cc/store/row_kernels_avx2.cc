#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/row_layout.h"

// After the includes: what they define inline stays baseline code.
#pragma GCC target("avx2")
#define TFCTR_CPU_LEVEL avx2
#define TFCTR_CPU_LEVEL_NAME "avx2"
#include "tfctr_ops/cc/store/row_kernels_impl.h"
