// The order of keys by the locks of a cuckoo hash table of TFRA.
//
// That table has a lock, of one cache line, for every 65536th bucket, which is
// more than the caches near a processor hold. A batch that takes them one after
// the other, in the same order each time, is found and inserted faster; the
// order in memory of the buckets gives no more.

#ifndef TFCTR_OPS_CC_STORE_LOCK_ORDER_H_
#define TFCTR_OPS_CC_STORE_LOCK_ORDER_H_

#include <cstdint>

namespace tfctr {

// What stands for the key (feature, id) in a table of 64-bit keys.
inline int64_t WordOf(int64_t id, int32_t feature) {
  const uint64_t pattern =
      (static_cast<uint64_t>(feature) + 1) * 0x9e3779b97f4a7c15ULL;
  return static_cast<int64_t>(static_cast<uint64_t>(id) ^ pattern);
}

// The group of eight locks, in [0, 2^13), that a word belongs to: by the low 16
// bits of the table's hash, which is the finalizer of MurmurHash3.
inline int32_t LocksOf(int64_t word) {
  auto hash = static_cast<uint64_t>(word);
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  hash ^= hash >> 33;
  hash *= 0xc4ceb9fe1a85ec53ULL;
  hash ^= hash >> 33;
  return static_cast<int32_t>((hash & 0xffff) >> 3);
}

// Replaces what LocksOf says of each of n words by the word's place among them
// in that order; equals stay as they came.
void LocksToPlaces(int64_t n, int32_t* locks);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_LOCK_ORDER_H_
