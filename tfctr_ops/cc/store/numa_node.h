// NUMA nodes: from which of them the pages of a mapping come.

#ifndef TFCTR_OPS_CC_STORE_NUMA_NODE_H_
#define TFCTR_OPS_CC_STORE_NUMA_NODE_H_

#include <cstddef>
#include <cstdint>

#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// No node is asked for: the policy of the process decides.
constexpr int64_t kAnyNumaNode = -1;

// Is OK for kAnyNumaNode, if pages can come from the node, or if the system
// forbids to ask for any, as containers do that lack the capability SYS_NICE.
// Otherwise the node is not there, has no memory, or a cgroup keeps this
// process off it.
Status CheckNumaNode(int64_t node);

// Takes the pages of [start, start + bytes) from the node, and from others once
// it is full. REQUIRES: `start` is at the beginning of a page, and no page has
// been touched. Returns false if the system refuses: each page then comes from
// the node of the thread that touches it first, unless the process has another
// policy.
bool PreferNumaNode(void* start, size_t bytes, int64_t node);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_NUMA_NODE_H_
