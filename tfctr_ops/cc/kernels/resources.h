// How the store appears to TensorFlow: resources, tickets in variant tensors,
// and TensorFlow's threads as an Executor.

#ifndef TFCTR_OPS_CC_KERNELS_RESOURCES_H_
#define TFCTR_OPS_CC_KERNELS_RESOURCES_H_

#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {

class BudgetResource : public tensorflow::ResourceBase {
 public:
  explicit BudgetResource(int64_t limit_bytes)
      : budget(std::make_shared<MemoryBudget>(limit_bytes)) {}
  std::string DebugString() const override { return "tfctr.MemoryBudget"; }

  const std::shared_ptr<MemoryBudget> budget;
};

class StoreResource : public tensorflow::ResourceBase {
 public:
  StoreResource(std::shared_ptr<EmbeddingStore> store, int num_threads)
      : num_threads(num_threads), store_(std::move(store)) {}
  std::string DebugString() const override { return "tfctr.EmbeddingStore"; }

  // Null once it was closed. Whoever holds the store may finish with it.
  std::shared_ptr<EmbeddingStore> store() const {
    return std::atomic_load(&store_);
  }
  void Close() { std::atomic_store(&store_, {}); }

  const int num_threads;  // 0: as many as TensorFlow has.

 private:
  std::shared_ptr<EmbeddingStore> store_;  // Through atomic functions only.
};

// A ticket as the value of a scalar variant tensor. It lives as long as the
// tensor, so a lookup without a backward pass leaves nothing behind.
struct TicketVariant {
  std::shared_ptr<Ticket> ticket;

  std::string TypeName() const { return "tfctr::Ticket"; }
  // A ticket is a process's own and is never written down.
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// Runs tasks on the intra-op threads of the device, the caller among them. An
// exception of a task is thrown again in the caller, when all tasks are done.
class DeviceExecutor final : public Executor {
 public:
  DeviceExecutor(tensorflow::OpKernelContext* ctx, int max_threads);

  int parallelism() const override { return parallelism_; }
  void ParallelFor(int64_t num_tasks,
                   const std::function<void(int64_t)>& task) override;

 private:
  tensorflow::thread::ThreadPool* const threads_;
  int parallelism_;
};

absl::Status ToTensorFlow(const Status& status);

// What all kernels on a store share: they find it in input 0, run on its
// threads, and tell when there is no memory left.
class StoreKernel : public tensorflow::OpKernel {
 public:
  explicit StoreKernel(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tensorflow::OpKernelContext* ctx) final;

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           EmbeddingStore* store, Executor* executor) = 0;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_KERNELS_RESOURCES_H_
