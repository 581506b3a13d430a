// CountingBloomFilter: about how often each of very many keys was seen, in
// memory that does not grow with them.
//
// A key has `num_hashes` of the counters; the least of them is its count. Keys
// share counters, so a count may be too high, never too low. The sizes are
// those of the textbook: k = log2(1 / p) counters a key, rounded, and
// m = -k n / ln(1 - p^(1/k)) in all, 9.6 n for p = 0.01. Then, with n keys
// counted, another is found with a count above 0 with probability p.
//
// Counts rise by the minimal increase: only to the count that the key has now.
// So no counter exceeds the largest count asked for, and fewer keys are counted
// too high than if all of a key's counters were incremented.

#ifndef TFCTR_OPS_CC_STORE_BLOOM_FILTER_H_
#define TFCTR_OPS_CC_STORE_BLOOM_FILTER_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace tfctr {

class CountingBloomFilter {
 public:
  // Counters have 8 bits if `max_count` fits, else 16. Throws std::bad_alloc.
  // REQUIRES: expected_keys >= 1, 0 < false_positive_rate < 1,
  // max_count <= kMaxCount.
  CountingBloomFilter(int64_t expected_keys, double false_positive_rate,
                      int64_t max_count);

  static constexpr int64_t kMaxCount = 0xffff;
  // What its counters take.
  static int64_t BytesFor(int64_t expected_keys, double false_positive_rate,
                          int64_t max_count);

  // `hash` stands for the key, here and below.
  uint32_t Count(uint64_t hash) const;
  // Makes the count at least `count`. Thread safety: may be called
  // concurrently with itself, and the order of calls changes nothing.
  // REQUIRES: count <= max_count.
  void Raise(uint64_t hash, uint32_t count);
  void Clear();

  int64_t num_counters() const { return num_counters_; }
  int64_t num_hashes() const { return num_hashes_; }
  int64_t counter_bytes() const { return counter_bytes_; }
  int64_t bytes() const { return num_counters_ * counter_bytes_; }
  const uint8_t* data() const { return counters_.get(); }
  // Raises each counter to that of a filter with as many, of that width. No key
  // then counts for less than it did in either.
  void Merge(const uint8_t* counters, int64_t counter_bytes);

 private:
  struct Free {
    void operator()(uint8_t* counters) const { std::free(counters); }
  };
  using Counters = std::unique_ptr<uint8_t, Free>;

  int64_t PlaceOf(uint64_t hash, int64_t i) const;
  template <typename Counter>
  uint32_t CountIn(const Counter* counters, uint64_t hash) const;
  template <typename Counter>
  void RaiseIn(Counter* counters, uint64_t hash, uint32_t count);

  const int64_t num_hashes_;
  const int64_t num_counters_;
  const int64_t counter_bytes_;
  const uint32_t max_count_;
  Counters counters_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_BLOOM_FILTER_H_
