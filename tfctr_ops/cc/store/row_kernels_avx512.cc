#include "tfctr_ops/cc/store/row_kernels.h"
#include "tfctr_ops/cc/store/row_layout.h"

// After the includes: what they define inline stays baseline code.
#pragma GCC target("avx2,avx512f,avx512vl,avx512dq,prefer-vector-width=512")
#define TFCTR_CPU_LEVEL avx512
#define TFCTR_CPU_LEVEL_NAME "avx512"
#include "tfctr_ops/cc/store/row_kernels_impl.h"
