// CRC-32C (Castagnoli; RFC 3720, B.4): the checksum of everything the store
// writes.

#ifndef TFCTR_OPS_CC_STORE_CHECKSUM_H_
#define TFCTR_OPS_CC_STORE_CHECKSUM_H_

#include <cstdint>

namespace tfctr {

// Of `size` bytes that follow those whose checksum is `before`.
uint32_t Crc32c(const void* data, int64_t size, uint32_t before = 0);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_CHECKSUM_H_
