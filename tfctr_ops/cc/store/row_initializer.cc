#include "tfctr_ops/cc/store/row_initializer.h"

#include <algorithm>
#include <cmath>

#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

// Phi(-2), and Phi(2) - Phi(-2).
constexpr float kTailBelow = 0.02275013194817921f;
constexpr float kBetweenTails = 0.9544997361036416f;

float UniformOf(uint64_t state, uint32_t column) {
  const auto low = static_cast<uint32_t>(state);
  const auto high = static_cast<uint32_t>(state >> 32);
  const uint32_t bits = Mix32(Mix32(low + column * 0x9e3779b9U) ^ high);
  // Of 24 bits the sum would be rounded, at worst up to 1: an infinite
  // quantile.
  return static_cast<float>(bits >> 9) * 0x1p-23f + 0x1p-24f;
}

}  // namespace

float NormalQuantile(float p) {
  const float q = p - 0.5f;
  if (std::fabs(q) <= 0.425f) {
    const float r = 0.180625f - q * q;
    return q *
           (((59.109374720f * r + 159.29113202f) * r + 50.434271938f) * r +
            3.3871327179f) /
           (((67.187563600f * r + 78.757757664f) * r + 17.895169469f) * r +
            1.0f);
  }
  float r = std::sqrt(-std::log(q < 0 ? p : 1.0f - p));
  float quantile;
  if (r <= 5.0f) {
    r -= 1.6f;
    quantile = (((0.17023821103f * r + 1.3067284816f) * r + 2.7568153900f) * r +
                1.4234372777f) /
               ((0.12021132975f * r + 0.73700164250f) * r + 1.0f);
  } else {
    r -= 5.0f;
    quantile =
        (((0.017337203997f * r + 0.42868294337f) * r + 3.0812263860f) * r +
         6.6579051150f) /
        ((0.012258202635f * r + 0.24197894225f) * r + 1.0f);
  }
  return q < 0 ? -quantile : quantile;
}

void RowInitializer::Fill(uint64_t feature_seed, int64_t id, int64_t dim,
                          float* weights) const {
  if (kind == Kind::kConstant) {
    std::fill_n(weights, dim, location);
    return;
  }
  const uint64_t state = Mix64(feature_seed + Mix64(static_cast<uint64_t>(id)));
  for (int64_t c = 0; c < dim; ++c) {
    weights[c] = UniformOf(state, static_cast<uint32_t>(c));
  }
  switch (kind) {
    case Kind::kUniform:
      for (int64_t c = 0; c < dim; ++c) {
        weights[c] = location + scale * weights[c];
      }
      break;
    case Kind::kNormal:
      for (int64_t c = 0; c < dim; ++c) {
        weights[c] = location + scale * NormalQuantile(weights[c]);
      }
      break;
    case Kind::kTruncatedNormal:
      for (int64_t c = 0; c < dim; ++c) {
        const float p = kTailBelow + kBetweenTails * weights[c];
        weights[c] = location + scale * NormalQuantile(p);
      }
      break;
    case Kind::kConstant:
      break;
  }
}

}  // namespace tfctr
