// The kernel of stores that serve a model: those have a name, since a session
// runs the op that makes one with every request.

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tfctr_ops/cc/kernels/resources.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class ServedStoreOp final : public tf::OpKernel {
 public:
  explicit ServedStoreOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadAttrs(ctx));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ResourceMgr* const resources = ctx->resource_manager();
    const std::string& container =
        container_.empty() ? resources->default_container() : container_;
    tf::core::RefCountPtr<StoreResource> store;
    StoreResource* found = nullptr;
    OP_REQUIRES_OK(
        ctx, resources->LookupOrCreate<StoreResource>(
                 container, name_, &found,
                 [this](StoreResource** made) { return CreateStore(made); }));
    store.reset(found);
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<StoreResource>(ctx, container, name_);
  }

 private:
  absl::Status ReadAttrs(tf::OpKernelConstruction* ctx) {
    int64_t num_features;
    TF_RETURN_IF_ERROR(ctx->GetAttr("container", &container_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("shared_name", &name_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("table", &options_.name));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dim", &options_.dim));
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_features", &num_features));
    TF_RETURN_IF_ERROR(ctx->GetAttr("default_row", &options_.default_row));
    TF_RETURN_IF_ERROR(ctx->GetAttr("ram_bytes", &ram_bytes_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("ssd_directory", &options_.ssd.directory));
    const auto num_values = static_cast<int64_t>(options_.default_row.size());
    if (num_values != options_.dim) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`default_row` must have `dim` values. Received: ", num_values,
          " values, dim=", options_.dim, "."));
    }
    if (num_features > kMaxFeatures) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A store holds at most ", kMaxFeatures,
          " features. Received: num_features=", num_features, "."));
    }
    // They give new keys their first weights, and there are none.
    options_.feature_seeds.assign(static_cast<size_t>(num_features), 0);
    return absl::OkStatus();
  }

  absl::Status CreateStore(StoreResource** resource) const {
    StoreOptions options = options_;
    if (ram_bytes_ < 0) {
      options.ssd.directory.clear();
    } else {
      // Reads change nothing, so the rows that stay are chosen once for all.
      options.eviction_policy = EvictionPolicy::kLfu;
      TF_RETURN_IF_ERROR(ChooseDirectory(&options.ssd.directory));
    }
    std::shared_ptr<EmbeddingStore> store;
    TF_RETURN_IF_ERROR(ToTensorFlow(EmbeddingStore::Create(
        options, std::make_shared<MemoryBudget>(ram_bytes_), &store)));
    *resource = new StoreResource(std::move(store), /*num_threads=*/0);
    return absl::OkStatus();
  }

  absl::Status ChooseDirectory(std::string* directory) const {
    if (!directory->empty()) return absl::OkStatus();
    std::error_code error;
    *directory = std::filesystem::temp_directory_path(error).string();
    if (!error) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "Table '", options_.name,
        "' keeps rows in the system's temporary directory, and there is none: ",
        error.message(), ". Set TMPDIR to a directory on a fast disk."));
  }

  std::string container_, name_;
  StoreOptions options_;
  int64_t ram_bytes_ = -1;
};

REGISTER_KERNEL_BUILDER(
    Name("Tfctr>ServedEmbeddingStore").Device(tf::DEVICE_CPU), ServedStoreOp);

}  // namespace
}  // namespace tfctr
