// The source of row_kernels_{baseline,avx2,avx512}.cc. Each defines
// TFCTR_CPU_LEVEL and sets the compiler's target before including this file;
// everything below lives in a namespace of that name.
//
// No include guard and no includes: whatever a header defines inline must be
// compiled for the baseline, or the linker might keep an AVX copy of it for
// machines that cannot run it.

namespace tfctr {
namespace TFCTR_CPU_LEVEL {

// Widths that people use most get code of their own, in which all loops over a
// row are unrolled; kDim = 0 stands for any other.
#define TFCTR_FOR_DIM(dim, call) \
  switch (dim) {                 \
    case 1:                      \
      return call(1);            \
    case 8:                      \
      return call(8);            \
    case 16:                     \
      return call(16);           \
    case 32:                     \
      return call(32);           \
    default:                     \
      return call(0);            \
  }

// Rows are worked off in blocks of 16 floats (one AVX-512 register), then 4,
// then 1. Loops over a constant number of lanes become vector instructions.
#define TFCTR_FOR_EACH_BLOCK(dim, c, body)        \
  do {                                            \
    int64_t c = 0;                                \
    for (; c + 16 <= (dim); c += 16) body(16, c); \
    for (; c + 4 <= (dim); c += 4) body(4, c);    \
    for (; c < (dim); ++c) body(1, c);            \
  } while (false)

template <int kLanes>
inline void CopyBlock(const float* __restrict from, float* __restrict to) {
  for (int i = 0; i < kLanes; ++i) to[i] = from[i];
}

template <int kDim>
void CopyRows(const float* const* from, const int32_t* positions, int64_t n,
              int64_t any_dim, float* rows) {
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  for (int64_t i = 0; i < n; ++i) {
    const float* source = from[i];
    float* to = rows + positions[i] * dim;
#define TFCTR_BODY(lanes, c) CopyBlock<lanes>(source + c, to + c)
    TFCTR_FOR_EACH_BLOCK(dim, c, TFCTR_BODY);
#undef TFCTR_BODY
  }
}

void Copy(const float* const* from, const int32_t* positions, int64_t n,
          int64_t dim, float* rows) {
#define TFCTR_CALL(kDim) CopyRows<kDim>(from, positions, n, dim, rows)
  TFCTR_FOR_DIM(dim, TFCTR_CALL)
#undef TFCTR_CALL
}

template <int kLanes>
inline void AddBlock(const float* __restrict from, float* __restrict to) {
  for (int i = 0; i < kLanes; ++i) to[i] += from[i];
}

template <int kDim>
void AccumulateRows(const float* gradients, const int32_t* positions,
                    const int32_t* places, int64_t n, int64_t any_dim,
                    float* sums) {
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  constexpr int64_t kAhead = 12;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const float* next = gradients + positions[i + kAhead] * dim;
      __builtin_prefetch(next);
      if (dim > 16) __builtin_prefetch(next + 16);
    }
    const float* from = gradients + positions[i] * dim;
    float* to = sums + places[i] * dim;
#define TFCTR_BODY(lanes, c) AddBlock<lanes>(from + c, to + c)
    TFCTR_FOR_EACH_BLOCK(dim, c, TFCTR_BODY);
#undef TFCTR_BODY
  }
}

void Accumulate(const float* gradients, const int32_t* positions,
                const int32_t* places, int64_t n, int64_t dim, float* sums) {
#define TFCTR_CALL(kDim) \
  AccumulateRows<kDim>(gradients, positions, places, n, dim, sums)
  TFCTR_FOR_DIM(dim, TFCTR_CALL)
#undef TFCTR_CALL
}

bool AllWithin(const float* values, int64_t n, float bound) {
  // Without its sign, a float orders like the integer of the same bits, and NaN
  // and infinity come above all numbers.
  constexpr int32_t kMagnitude = 0x7fffffff;
  int32_t bound_bits;
  __builtin_memcpy(&bound_bits, &bound, sizeof(bound_bits));
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, values + i, sizeof(bits));
    bits &= kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest <= bound_bits;
}

using FourFloats __attribute__((vector_size(16))) = float;

// Of values[c] to values[c + 3]; zeros from `dim` on.
inline FourFloats Squares(const float* values, int64_t c, int64_t dim) {
  FourFloats four = {};
  if (c + 4 <= dim) {
    __builtin_memcpy(&four, values + c, sizeof(four));
  } else {
    if (c < dim) four[0] = values[c];
    if (c + 1 < dim) four[1] = values[c + 1];
    if (c + 2 < dim) four[2] = values[c + 2];
  }
  return four * four;
}

// In sixteen partial sums and one fixed order, whatever the register width.
inline float SumOfSquares(const float* values, int64_t dim) {
  FourFloats sums[4] = {};
  for (int64_t c = 0; c < dim; c += 16) {
    for (int i = 0; i < 4; ++i) sums[i] += Squares(values, c + 4 * i, dim);
  }
  const FourFloats sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

inline float Length(const float* values, int64_t dim) {
  return __builtin_sqrtf(SumOfSquares(values, dim));
}

// How long the gradient of a row may be.
struct Clip {
  float ratio, floor;
  // An infinite ratio clips not even where it is multiplied by zero.
  explicit Clip(const SparseOptimizer& optimizer)
      : ratio(optimizer.clip_ratio),
        floor(__builtin_isinf(ratio) ? ratio : optimizer.clip_floor) {}
  float Limit(const float* w, int64_t count, int64_t dim) const {
    const float scaled = ratio * Length(w, dim);
    const float longest = scaled > floor ? scaled : floor;
    // Zero times infinity is not a number.
    return count == 0 ? 0 : static_cast<float>(count) * longest;
  }
};

template <int kLanes>
inline void ScaleBlock(float factor, float* g) {
  for (int i = 0; i < kLanes; ++i) g[i] *= factor;
}

template <int kLanes>
inline void PenalizeBlock(float strength, const float* __restrict w,
                          float* __restrict g) {
  for (int i = 0; i < kLanes; ++i) g[i] += strength * w[i];
}

// Each rule has a block form `Block<lanes>(w, slots of the row, g, c)`.

struct Sgd {
  static constexpr int kSlotsPerWeight = 0;
  float learning_rate;
  Sgd(const SparseOptimizer&, const UpdateStep& step)
      : learning_rate(step.learning_rate) {}
  void StartRow(const RowHeader&, float*, const float*, int64_t) {}
  template <int kLanes>
  void Block(float* __restrict w, float*, const float* __restrict g, int64_t,
             int64_t) const {
    for (int i = 0; i < kLanes; ++i) w[i] -= learning_rate * g[i];
  }
};

struct Adagrad {
  static constexpr int kSlotsPerWeight = 1;
  float learning_rate, epsilon;
  Adagrad(const SparseOptimizer& optimizer, const UpdateStep& step)
      : learning_rate(step.learning_rate), epsilon(optimizer.epsilon) {}
  void StartRow(const RowHeader&, float*, const float*, int64_t) {}
  template <int kLanes>
  void Block(float* __restrict w, float* slots, const float* __restrict g,
             int64_t c, int64_t) const {
    float* __restrict a = slots + c;
    for (int i = 0; i < kLanes; ++i) {
      a[i] += g[i] * g[i];
      w[i] -= learning_rate * g[i] / __builtin_sqrtf(a[i] + epsilon);
    }
  }
};

struct RowwiseAdagrad {
  static constexpr int kSlotsPerWeight = 0;  // One for the whole row.
  float learning_rate, epsilon, factor = 0;
  RowwiseAdagrad(const SparseOptimizer& optimizer, const UpdateStep& step)
      : learning_rate(step.learning_rate), epsilon(optimizer.epsilon) {}
  void StartRow(const RowHeader&, float* slots, const float* g, int64_t dim) {
    slots[0] += SumOfSquares(g, dim) / static_cast<float>(dim);
    factor = learning_rate / __builtin_sqrtf(slots[0] + epsilon);
  }
  template <int kLanes>
  void Block(float* __restrict w, float*, const float* __restrict g, int64_t,
             int64_t) const {
    for (int i = 0; i < kLanes; ++i) w[i] -= factor * g[i];
  }
};

struct Adam {
  static constexpr int kSlotsPerWeight = 2;
  float learning_rate;
  double beta_1, beta_2;
  float epsilon, gain_1, gain_2, rate;
  bool per_row;
  Adam(const SparseOptimizer& optimizer, const UpdateStep& step)
      : learning_rate(step.learning_rate),
        beta_1(optimizer.beta_1),
        beta_2(optimizer.beta_2),
        epsilon(optimizer.epsilon),
        gain_1(static_cast<float>(1.0 - beta_1)),
        gain_2(static_cast<float>(1.0 - beta_2)),
        rate(Rate(step.number)),
        per_row(optimizer.per_row_bias_correction) {}
  float Rate(int64_t t) const {
    const double power_1 = __builtin_pow(beta_1, static_cast<double>(t));
    const double power_2 = __builtin_pow(beta_2, static_cast<double>(t));
    return static_cast<float>(learning_rate * __builtin_sqrt(1.0 - power_2) /
                              (1.0 - power_1));
  }
  void StartRow(const RowHeader& header, float*, const float*, int64_t) {
    if (per_row) rate = Rate(header.count);  // Already counts this update.
  }
  template <int kLanes>
  void Block(float* __restrict w, float* slots, const float* __restrict g,
             int64_t c, int64_t dim) const {
    float* __restrict m = slots + c;
    float* __restrict v = slots + dim + c;
    for (int i = 0; i < kLanes; ++i) {
      m[i] += gain_1 * (g[i] - m[i]);
      v[i] += gain_2 * (g[i] * g[i] - v[i]);
      w[i] -= rate * m[i] / (__builtin_sqrtf(v[i]) + epsilon);
    }
  }
};

struct Ftrl {
  static constexpr int kSlotsPerWeight = 2;
  float learning_rate, power, l1, l2, shrinkage, beta;
  // A learning rate of 0, as at the start of a warm-up, moves nothing.
  Ftrl(const SparseOptimizer& optimizer, const UpdateStep& step)
      : learning_rate(step.learning_rate),
        power(-optimizer.learning_rate_power),
        l1(optimizer.l1),
        l2(optimizer.l2),
        shrinkage(optimizer.l2_shrinkage),
        beta(optimizer.beta) {}
  void StartRow(const RowHeader&, float*, const float*, int64_t) {}
  float Power(float x) const {
    return power == 0.5f ? __builtin_sqrtf(x) : __builtin_powf(x, power);
  }
  template <int kLanes>
  void Block(float* __restrict w, float* slots, const float* __restrict g,
             int64_t c, int64_t dim) const {
    if (learning_rate == 0) return;
    float* __restrict n = slots + c;
    float* __restrict z = slots + dim + c;
    for (int i = 0; i < kLanes; ++i) {
      const float before = Power(n[i]);
      n[i] += g[i] * g[i];
      const float after = Power(n[i]);
      z[i] +=
          g[i] + 2 * shrinkage * w[i] - (after - before) / learning_rate * w[i];
      const float clipped = z[i] < -l1 ? -l1 : (z[i] > l1 ? l1 : z[i]);
      w[i] = (clipped - z[i]) /
             (after / learning_rate + 2 * l2 + beta / learning_rate);
    }
  }
};

template <typename Rule, int kDim>
RowKernels::Changes UpdateRows(const SparseOptimizer& optimizer,
                               const UpdateStep& step, int64_t any_dim,
                               std::byte* const* rows, float* sums,
                               const int64_t* counts, int64_t n,
                               int32_t* newly_dirty) {
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  Rule rule(optimizer, step);
  const bool clips = optimizer.clips();
  const Clip clip(optimizer);
  const float l2_strength = 2 * optimizer.l2_penalty;
  const float keep = 1.0f - step.learning_rate * optimizer.weight_decay;
  const int64_t row_bytes = static_cast<int64_t>(sizeof(RowHeader)) +
                            4 * (dim * (1 + Rule::kSlotsPerWeight));
  // In bursts: a load that misses its page holds up all that follows it, but
  // for other such loads.
  constexpr int64_t kBurst = 16;
  RowKernels::Changes changes = {0, 0, 0};
  for (int64_t r = 0; r < n; ++r) {
    if (r % kBurst == 0) {
      const int64_t end = r + 2 * kBurst < n ? r + 2 * kBurst : n;
      for (int64_t i = r + kBurst; i < end; ++i) {
        RowLayout::Prefetch(rows[i], row_bytes);
      }
    }
    auto* header = reinterpret_cast<RowHeader*>(rows[r]);
    changes.newly_known += !header->known;
    newly_dirty[changes.num_newly_dirty] = static_cast<int32_t>(r);
    changes.num_newly_dirty += header->dirty == 0;
    header->known = 1;
    header->dirty = step.dirty & 3;
    header->last_step = static_cast<uint32_t>(step.number);
    if (header->count != 0xffffffffU) ++header->count;
    auto* w = reinterpret_cast<float*>(rows[r] + sizeof(RowHeader));
    float* slots = w + dim;
    float* g = sums + r * dim;
    if (clips) {
      const float limit = clip.Limit(w, counts[r], dim);
      const float length = Length(g, dim);
      changes.clipped += length > limit;
      // 1 for a length of zero, too: no comparison holds for zero by zero.
      const float ratio = limit / length;
      const float factor = ratio < 1 ? ratio : 1;
#define TFCTR_BODY(lanes, c) ScaleBlock<lanes>(factor, g + c)
      TFCTR_FOR_EACH_BLOCK(dim, c, TFCTR_BODY);
#undef TFCTR_BODY
    }
    // Without a clip there are no counts, and each row has a sample.
    const bool has_sample = !clips || counts[r] > 0;
    if (l2_strength != 0 && has_sample) {
#define TFCTR_BODY(lanes, c) PenalizeBlock<lanes>(l2_strength, w + c, g + c)
      TFCTR_FOR_EACH_BLOCK(dim, c, TFCTR_BODY);
#undef TFCTR_BODY
    }
    if (keep != 1.0f) {
      for (int64_t c = 0; c < dim; ++c) w[c] *= keep;
    }
    rule.StartRow(*header, slots, g, dim);
#define TFCTR_BODY(lanes, c) \
  rule.template Block<lanes>(w + c, slots, g + c, c, dim)
    TFCTR_FOR_EACH_BLOCK(dim, c, TFCTR_BODY);
#undef TFCTR_BODY
  }
  return changes;
}

template <typename Rule>
RowKernels::Changes UpdateRowsOf(const SparseOptimizer& optimizer,
                                 const UpdateStep& step, int64_t dim,
                                 std::byte* const* rows, float* sums,
                                 const int64_t* counts, int64_t n,
                                 int32_t* newly_dirty){
#define TFCTR_CALL(kDim)                                              \
  UpdateRows<Rule, kDim>(optimizer, step, dim, rows, sums, counts, n, \
                         newly_dirty)
    TFCTR_FOR_DIM(dim, TFCTR_CALL)
#undef TFCTR_CALL
}

RowKernels::Changes
    Update(const SparseOptimizer& optimizer, const UpdateStep& step,
           int64_t dim, std::byte* const* rows, float* sums,
           const int64_t* counts, int64_t n, int32_t* newly_dirty) {
  switch (optimizer.kind) {
    case SparseOptimizer::Kind::kSgd:
      return UpdateRowsOf<Sgd>(optimizer, step, dim, rows, sums, counts, n,
                               newly_dirty);
    case SparseOptimizer::Kind::kAdagrad:
      return UpdateRowsOf<Adagrad>(optimizer, step, dim, rows, sums, counts, n,
                                   newly_dirty);
    case SparseOptimizer::Kind::kRowwiseAdagrad:
      return UpdateRowsOf<RowwiseAdagrad>(optimizer, step, dim, rows, sums,
                                          counts, n, newly_dirty);
    case SparseOptimizer::Kind::kAdam:
      return UpdateRowsOf<Adam>(optimizer, step, dim, rows, sums, counts, n,
                                newly_dirty);
    case SparseOptimizer::Kind::kFtrl:
      return UpdateRowsOf<Ftrl>(optimizer, step, dim, rows, sums, counts, n,
                                newly_dirty);
  }
  return {0, 0, 0};
}

#undef TFCTR_FOR_EACH_BLOCK
#undef TFCTR_FOR_DIM

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {TFCTR_CPU_LEVEL_NAME, Copy, Accumulate, Update,
                                AllWithin};

}  // namespace TFCTR_CPU_LEVEL
}  // namespace tfctr
