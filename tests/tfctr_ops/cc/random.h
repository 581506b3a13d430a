// Random: numbers for tests, the same on every machine.

#ifndef TESTS_TFCTR_OPS_CC_RANDOM_H_
#define TESTS_TFCTR_OPS_CC_RANDOM_H_

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace tfctr {
namespace testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t Bits() { return engine_(); }

  // In [0, n).
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n));
  }

  // In [low, high).
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(Bits() >> 40) * 0x1p-24f;
  }

  std::vector<float> Uniforms(int64_t n, float low, float high) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(Uniform(low, high));
    return values;
  }

  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (size_t i = values->size(); i > 1; --i) {
      std::swap((*values)[i - 1],
                (*values)[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_RANDOM_H_
