// RowInitializer: the first weights of a row, a pure function of (seed, id).
//
// Neither the order in which keys arrive nor the number of threads, ranks,
// evictions or restarts changes what a key starts from.
//
//   state    = Mix64(feature_seed + Mix64(id))
//   bits[c]  = Mix32(Mix32(low32(state) + c * 0x9e3779b9) ^ high32(state))
//   u[c]     = (bits[c] >> 9) * 2^-23 + 2^-24            in (0, 1), exact
//   uniform            minval + (maxval - minval) * u
//   normal             mean + stddev * Phi^-1(u)
//   truncated normal   mean + stddev * Phi^-1(Phi(-2) + u * (Phi(2) - Phi(-2)))

#ifndef TFCTR_OPS_CC_STORE_ROW_INITIALIZER_H_
#define TFCTR_OPS_CC_STORE_ROW_INITIALIZER_H_

#include <cstdint>

namespace tfctr {

struct RowInitializer {
  enum class Kind { kConstant, kUniform, kNormal, kTruncatedNormal };

  Kind kind = Kind::kConstant;
  // The constant; the least value; the mean.
  float location = 0.0f;
  // Unused; the range; the standard deviation (before truncation).
  float scale = 0.0f;

  // Fills weights, dim floats.
  void Fill(uint64_t feature_seed, int64_t id, int64_t dim,
            float* weights) const;
};

// The inverse of the standard normal distribution function, to about 1e-7
// (algorithm AS 241, PPND7: Wichura, Applied Statistics 37, 1988).
// REQUIRES: 0 < p < 1.
float NormalQuantile(float p);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ROW_INITIALIZER_H_
