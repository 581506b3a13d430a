// Kernels that make budgets and stores.

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/optimizer_attributes.h"
#include "tfctr_ops/cc/kernels/resources.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

constexpr int kMaxShardBits = 16;

template <typename Resource>
void OutputHandle(tf::OpKernelContext* ctx, Resource* resource) {
  tf::Tensor* handle = nullptr;
  OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &handle));
  // The handle owns the resource: it dies with the last tensor that refers to
  // it, and no name can ever make two tables one.
  handle->scalar<tf::ResourceHandle>()() =
      tf::ResourceHandle::MakeRefCountingHandle(resource,
                                                ctx->device()->name());
}

class MemoryBudgetOp : public tf::OpKernel {
 public:
  explicit MemoryBudgetOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t limit_bytes;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("limit_bytes", &limit_bytes));
    limit_bytes_ = limit_bytes;
  }
  void Compute(tf::OpKernelContext* ctx) override {
    OutputHandle(ctx, new BudgetResource(limit_bytes_));
  }

 private:
  int64_t limit_bytes_;
};

class EmbeddingStoreOp : public tf::OpKernel {
 public:
  explicit EmbeddingStoreOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadAttrs(ctx));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<BudgetResource> budget;
    OP_REQUIRES_OK(
        ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &budget));
    std::shared_ptr<EmbeddingStore> store;
    OP_REQUIRES_OK(ctx, ToTensorFlow(EmbeddingStore::Create(
                            options_, budget->budget, &store)));
    OutputHandle(ctx, new StoreResource(std::move(store), num_threads_));
  }

 private:
  absl::Status ReadAttrs(tf::OpKernelConstruction* ctx) {
    std::vector<int64_t> seeds;
    std::string initializer, eviction;
    TF_RETURN_IF_ERROR(ctx->GetAttr("table", &options_.name));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dim", &options_.dim));
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_threads", &num_threads_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("numa_node", &options_.numa_node));
    TF_RETURN_IF_ERROR(ctx->GetAttr("shard_bits", &options_.shard_bits));
    TF_RETURN_IF_ERROR(ctx->GetAttr("feature_seeds", &seeds));
    TF_RETURN_IF_ERROR(ctx->GetAttr("default_row", &options_.default_row));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("skip_bad_gradients", &options_.skip_bad_gradients));
    TF_RETURN_IF_ERROR(ctx->GetAttr("eviction_policy", &eviction));
    TF_RETURN_IF_ERROR(ctx->GetAttr("ssd_directory", &options_.ssd.directory));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("ssd_limit_bytes", &options_.ssd.limit_bytes));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("direct_reads", &options_.ssd.direct_reads));
    TF_RETURN_IF_ERROR(ReadAdmission(ctx));
    TF_RETURN_IF_ERROR(ReadExpiry(ctx));
    TF_RETURN_IF_ERROR(ctx->GetAttr("initializer", &initializer));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("initializer_location", &options_.initializer.location));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("initializer_scale", &options_.initializer.scale));
    TF_RETURN_IF_ERROR(OptimizerFromAttributes(ctx, &options_.optimizer));
    options_.feature_seeds.assign(seeds.begin(), seeds.end());
    RowInitializer::Kind& law = options_.initializer.kind;
    if (initializer == "uniform") {
      law = RowInitializer::Kind::kUniform;
    } else if (initializer == "normal") {
      law = RowInitializer::Kind::kNormal;
    } else if (initializer == "truncated_normal") {
      law = RowInitializer::Kind::kTruncatedNormal;
    }
    if (eviction == "clock") options_.eviction_policy = EvictionPolicy::kClock;
    if (eviction == "lru") options_.eviction_policy = EvictionPolicy::kLru;
    if (eviction == "lfu") options_.eviction_policy = EvictionPolicy::kLfu;
    return CheckSizes();
  }

  absl::Status ReadAdmission(tf::OpKernelConstruction* ctx) {
    AdmissionOptions& admission = options_.admission;
    std::string kind;
    float rate, probability;
    TF_RETURN_IF_ERROR(ctx->GetAttr("admission", &kind));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("admission_min_count", &admission.min_count));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("admission_expected_keys", &admission.expected_keys));
    TF_RETURN_IF_ERROR(ctx->GetAttr("admission_false_positive_rate", &rate));
    TF_RETURN_IF_ERROR(ctx->GetAttr("admission_probability", &probability));
    admission.false_positive_rate = ShortestDouble(rate);
    admission.probability = ShortestDouble(probability);
    if (kind == "count") {
      admission.kind = AdmissionOptions::Kind::kCount;
    } else if (kind == "bloom") {
      admission.kind = AdmissionOptions::Kind::kBloom;
    } else if (kind == "probability") {
      admission.kind = AdmissionOptions::Kind::kProbability;
    }
    const int64_t most = kind == "bloom" ? CountingBloomFilter::kMaxCount
                                         : std::numeric_limits<int32_t>::max();
    if (admission.min_count > most || !(rate > 0.0f && rate < 1.0f) ||
        !(probability > 0.0f && probability <= 1.0f)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Admission needs a min_count up to ", most,
          ", a false_positive_rate in (0, 1) and a probability in (0, 1]. "
          "Received: min_count=",
          admission.min_count, ", false_positive_rate=", rate,
          ", probability=", probability, "."));
    }
    return absl::OkStatus();
  }

  absl::Status ReadExpiry(tf::OpKernelConstruction* ctx) {
    ExpiryOptions& expiry = options_.expiry;
    float min_norm;
    TF_RETURN_IF_ERROR(ctx->GetAttr("expiry_every", &expiry.every));
    TF_RETURN_IF_ERROR(
        ctx->GetAttr("expiry_unused_steps", &expiry.unused_steps));
    TF_RETURN_IF_ERROR(ctx->GetAttr("expiry_min_norm", &min_norm));
    TF_RETURN_IF_ERROR(ctx->GetAttr("expiry_max_rows", &expiry.max_rows));
    expiry.min_norm = ShortestDouble(min_norm);
    return absl::OkStatus();
  }

  absl::Status CheckSizes() const {
    const auto dim = static_cast<size_t>(options_.dim);
    if (options_.default_row.size() != dim) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`default_row` must have `dim` values. Received: ",
          options_.default_row.size(), " values, dim=", options_.dim, "."));
    }
    if (options_.shard_bits > kMaxShardBits) {
      return absl::InvalidArgumentError(
          absl::StrCat("`shard_bits` must not be above ", kMaxShardBits,
                       ". Received: shard_bits=", options_.shard_bits, "."));
    }
    if (!options_.ssd.directory.empty() &&
        options_.eviction_policy == EvictionPolicy::kNone) {
      return absl::InvalidArgumentError(
          "A store with an `ssd_directory` needs an `eviction_policy`. "
          "Received: eviction_policy='none'.");
    }
    if (options_.feature_seeds.size() > static_cast<size_t>(kMaxFeatures)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A store holds at most ", kMaxFeatures, " features. Received: ",
          options_.feature_seeds.size(), " feature_seeds."));
    }
    return absl::OkStatus();
  }

  StoreOptions options_;
  int num_threads_ = 0;
};

class CloseOp : public tf::OpKernel {
 public:
  explicit CloseOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(
        ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &resource));
    resource->Close();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStoreClose").Device(tf::DEVICE_CPU), CloseOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>MemoryBudget").Device(tf::DEVICE_CPU),
                        MemoryBudgetOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>EmbeddingStore").Device(tf::DEVICE_CPU),
                        EmbeddingStoreOp);

}  // namespace
}  // namespace tfctr
