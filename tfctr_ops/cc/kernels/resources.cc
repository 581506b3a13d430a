#include "tfctr_ops/cc/kernels/resources.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tfctr {
namespace {

// Shared by the caller and its helpers. A helper that starts after the last
// task was taken finds nothing to do and touches only this.
struct ParallelRun {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> num_done{0};
  int64_t num_tasks = 0;
  const std::function<void(int64_t)>* task = nullptr;
  std::mutex mutex;
  std::condition_variable all_done;
  std::exception_ptr error;  // The first one; guarded by mutex.

  void Work() {
    for (int64_t i; (i = next.fetch_add(1)) < num_tasks;) {
      try {
        (*task)(i);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (error == nullptr) error = std::current_exception();
      }
      if (num_done.fetch_add(1) + 1 == num_tasks) {
        std::lock_guard<std::mutex> lock(mutex);
        all_done.notify_all();
      }
    }
  }

  void Wait() {
    // Helpers are at most one task behind: waiting awake is shorter than sleep.
    for (int spin = 0; spin < 20000; ++spin) {
      if (num_done.load() == num_tasks) return;
      __builtin_ia32_pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return num_done.load() == num_tasks; });
  }
};

}  // namespace

DeviceExecutor::DeviceExecutor(tensorflow::OpKernelContext* ctx,
                               int max_threads)
    : threads_(ctx->device()->tensorflow_cpu_worker_threads()->workers),
      parallelism_(threads_->NumThreads()) {
  if (max_threads > 0) parallelism_ = std::min(parallelism_, max_threads);
}

void DeviceExecutor::ParallelFor(int64_t num_tasks,
                                 const std::function<void(int64_t)>& task) {
  const int64_t num_helpers = std::min<int64_t>(parallelism_, num_tasks) - 1;
  if (num_helpers <= 0) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  auto run = std::make_shared<ParallelRun>();
  run->num_tasks = num_tasks;
  run->task = &task;
  for (int64_t h = 0; h < num_helpers; ++h) {
    threads_->Schedule([run] { run->Work(); });
  }
  run->Work();
  run->Wait();
  std::lock_guard<std::mutex> lock(run->mutex);
  if (run->error != nullptr) std::rethrow_exception(run->error);
}

void StoreKernel::Compute(tensorflow::OpKernelContext* ctx) {
  tensorflow::core::RefCountPtr<StoreResource> resource;
  OP_REQUIRES_OK(ctx, tensorflow::LookupResource(
                          ctx, tensorflow::HandleFromInput(ctx, 0), &resource));
  DeviceExecutor executor(ctx, resource->num_threads);
  const std::shared_ptr<EmbeddingStore> store = resource->store();
  OP_REQUIRES(
      ctx, store != nullptr,
      absl::FailedPreconditionError(
          "This function uses a table whose layer is gone, and the rows "
          "with it. Keep the layer, or its model, for as long as "
          "functions that were made from it."));
  try {
    OP_REQUIRES_OK(ctx, Run(ctx, store.get(), &executor));
  } catch (const std::bad_alloc&) {
    ctx->CtxFailure(absl::ResourceExhaustedError(absl::StrCat(
        "The system has no memory left for table '", store->options().name,
        "'. Bound the rows with TieredStorage(ram=...) and an eviction policy, "
        "or use a machine with more memory.")));
  }
}

absl::Status ToTensorFlow(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(status.message());
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message());
    case StatusCode::kUnavailable:
      return absl::UnavailableError(status.message());
    case StatusCode::kDataLoss:
      return absl::DataLossError(status.message());
  }
  return absl::InternalError(status.message());
}

}  // namespace tfctr
