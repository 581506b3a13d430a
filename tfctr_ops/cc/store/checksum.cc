#include "tfctr_ops/cc/store/checksum.h"

#include <array>
#include <cstring>

namespace tfctr {
namespace {

std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kPolynomial = 0x82f63b78U;  // Reflected.
  std::array<uint32_t, 256> table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}

uint32_t ExtendByTable(const uint8_t* data, int64_t size, uint32_t crc) {
  static const std::array<uint32_t, 256> table = MakeTable();
  for (int64_t i = 0; i < size; ++i) {
    crc = (crc >> 8) ^ table[(crc ^ data[i]) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t
ExtendByInstruction(const uint8_t* data, int64_t size, uint32_t crc) {
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size, ++data) crc = __builtin_ia32_crc32qi(crc, *data);
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(const void* data, int64_t size, uint32_t before) {
  const auto* bytes = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~ExtendByInstruction(bytes, size, ~before);
#endif
  return ~ExtendByTable(bytes, size, ~before);
}

}  // namespace tfctr
