// Integer mixing. Every function here is built from wrapping multiplications,
// shifts and xors only, so that TensorFlow's stock ops can compute the same.

#ifndef TFCTR_OPS_CC_STORE_HASH_H_
#define TFCTR_OPS_CC_STORE_HASH_H_

#include <cstdint>

namespace tfctr {

// A bijection of 64-bit words in which every input bit moves every output bit
// (Stafford's thirteenth variant of the MurmurHash3 finalizer).
inline uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

// The same for 32-bit words (the MurmurHash3 finalizer).
inline uint32_t Mix32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x *= 0xc2b2ae35U;
  x ^= x >> 16;
  return x;
}

// Places the key (feature, id): its high bits choose the shard, the next ones
// the place in the shard's index. `salt` makes the places of one table
// unpredictable from those of another.
inline uint64_t HashKey(uint64_t salt, uint32_t feature, int64_t id) {
  const uint64_t space = (feature + 1ULL) * 0x9e3779b97f4a7c15ULL;
  return Mix64(static_cast<uint64_t>(id) ^ space ^ salt);
}

// The shard of a key and its tag in the shard's index, from its hash.
inline uint32_t ShardOf(uint64_t hash, int shard_bits) {
  return shard_bits == 0 ? 0 : static_cast<uint32_t>(hash >> (64 - shard_bits));
}
inline uint32_t IndexTag(uint64_t hash, int shard_bits) {
  return static_cast<uint32_t>(hash >> (32 - shard_bits));
}

// The rank that owns the key (feature, id): a pure function of both, in
// [0, num_owners). Its salt is not that of any store, or the keys of one rank
// would all fall into a few shards of its store.
inline int32_t OwnerOf(uint32_t feature, int64_t id, int64_t num_owners) {
  constexpr uint64_t kOwnerSalt = 0x3c6ef372fe94f82bULL;
  const uint64_t hash = HashKey(kOwnerSalt, feature, id) >> 32;
  return static_cast<int32_t>((hash * static_cast<uint64_t>(num_owners)) >> 32);
}

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_HASH_H_
