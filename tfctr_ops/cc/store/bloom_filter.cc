#include "tfctr_ops/cc/store/bloom_filter.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

int64_t NumHashes(double rate) {
  return std::max<int64_t>(1, std::llround(-std::log2(rate)));
}

// For a whole number of hashes: -n log2(p) / ln(2) needs a fraction of one.
int64_t NumCounters(int64_t keys, double rate, int64_t num_hashes) {
  const auto k = static_cast<double>(num_hashes);
  const double per_key = -k / std::log1p(-std::pow(rate, 1 / k));
  // No system has memory for more, and the number must not overflow.
  constexpr double kMostCounters = 0x1p60;
  return static_cast<int64_t>(
      std::min(kMostCounters, std::ceil(per_key * static_cast<double>(keys))));
}

int64_t CounterBytes(int64_t max_count) { return max_count <= 0xff ? 1 : 2; }

// The system has zeroed pages at hand, and gives them when they are used.
uint8_t* Zeros(int64_t bytes) {
  void* zeros = std::calloc(static_cast<size_t>(bytes), 1);
  if (zeros == nullptr) throw std::bad_alloc();
  return static_cast<uint8_t*>(zeros);
}

}  // namespace

CountingBloomFilter::CountingBloomFilter(int64_t expected_keys,
                                         double false_positive_rate,
                                         int64_t max_count)
    : num_hashes_(NumHashes(false_positive_rate)),
      num_counters_(
          NumCounters(expected_keys, false_positive_rate, num_hashes_)),
      counter_bytes_(CounterBytes(max_count)),
      max_count_(static_cast<uint32_t>(max_count)),
      counters_(Zeros(bytes())) {}

int64_t CountingBloomFilter::BytesFor(int64_t expected_keys,
                                      double false_positive_rate,
                                      int64_t max_count) {
  return CounterBytes(max_count) * NumCounters(expected_keys,
                                               false_positive_rate,
                                               NumHashes(false_positive_rate));
}

void CountingBloomFilter::Clear() {
  std::fill_n(counters_.get(), bytes(), uint8_t{0});
}

int64_t CountingBloomFilter::PlaceOf(uint64_t hash, int64_t i) const {
  // Two hashes make all (Kirsch and Mitzenmacher, 2006).
  const uint64_t step = Mix64(hash + 0x9e3779b97f4a7c15ULL) | 1;
  const uint64_t word = hash + static_cast<uint64_t>(i) * step;
  return static_cast<int64_t>((static_cast<unsigned __int128>(word) *
                               static_cast<uint64_t>(num_counters_)) >>
                              64);
}

template <typename Counter>
uint32_t CountingBloomFilter::CountIn(const Counter* counters,
                                      uint64_t hash) const {
  uint32_t least = ~0U;
  for (int64_t i = 0; i < num_hashes_; ++i) {
    const Counter* counter = counters + PlaceOf(hash, i);
    least =
        std::min<uint32_t>(least, __atomic_load_n(counter, __ATOMIC_RELAXED));
  }
  return least;
}

uint32_t CountingBloomFilter::Count(uint64_t hash) const {
  const auto* wide = reinterpret_cast<const uint16_t*>(counters_.get());
  return counter_bytes_ == 1 ? CountIn(counters_.get(), hash)
                             : CountIn(wide, hash);
}

template <typename Counter>
void CountingBloomFilter::RaiseIn(Counter* counters, uint64_t hash,
                                  uint32_t count) {
  const auto wanted = static_cast<Counter>(count);
  for (int64_t i = 0; i < num_hashes_; ++i) {
    Counter* counter = counters + PlaceOf(hash, i);
    Counter before = __atomic_load_n(counter, __ATOMIC_RELAXED);
    while (before < wanted &&
           !__atomic_compare_exchange_n(counter, &before, wanted, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
}

void CountingBloomFilter::Raise(uint64_t hash, uint32_t count) {
  if (counter_bytes_ == 1) return RaiseIn(counters_.get(), hash, count);
  RaiseIn(reinterpret_cast<uint16_t*>(counters_.get()), hash, count);
}

void CountingBloomFilter::Merge(const uint8_t* counters,
                                int64_t counter_bytes) {
  const auto* wide = reinterpret_cast<const uint16_t*>(counters);
  auto* own_wide = reinterpret_cast<uint16_t*>(counters_.get());
  for (int64_t i = 0; i < num_counters_; ++i) {
    const uint32_t count = std::min<uint32_t>(
        max_count_, counter_bytes == 1 ? counters[i] : wide[i]);
    if (counter_bytes_ == 1) {
      uint8_t& own = counters_.get()[i];
      own = std::max(own, static_cast<uint8_t>(count));
    } else {
      own_wide[i] = std::max(own_wide[i], static_cast<uint16_t>(count));
    }
  }
}

}  // namespace tfctr
