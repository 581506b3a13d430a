// ThreadExecutor: an Executor with threads of its own.

#ifndef TESTS_TFCTR_OPS_CC_THREAD_EXECUTOR_H_
#define TESTS_TFCTR_OPS_CC_THREAD_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tfctr_ops/cc/store/executor.h"

namespace tfctr {
namespace testing {

// Thread safety: ParallelFor may be called from many threads at once. A caller
// works on its own tasks and never waits for a helper that has not begun one:
// the store calls ParallelFor with locks held for which all helpers may be
// waiting, on behalf of another caller.
class ThreadExecutor final : public Executor {
 public:
  // The caller is one of `num_threads`.
  explicit ThreadExecutor(int num_threads) {
    for (int i = 1; i < num_threads; ++i) {
      helpers_.emplace_back([this] { Help(); });
    }
  }

  ~ThreadExecutor() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_closing_ = true;
    }
    work_or_end_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  int parallelism() const override {
    return static_cast<int>(helpers_.size()) + 1;
  }

  void ParallelFor(int64_t num_tasks,
                   const std::function<void(int64_t)>& task) override {
    auto run = std::make_shared<Run>();
    run->task = &task;
    run->num_tasks = num_tasks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      runs_.insert(runs_.end(), helpers_.size(), run);
    }
    work_or_end_.notify_all();
    Work(run.get());
    std::unique_lock<std::mutex> lock(run->mutex);
    run->all_done.wait(lock, [&] { return run->num_done == num_tasks; });
  }

 private:
  // One call of ParallelFor. `task` may be gone once all are done.
  struct Run {
    const std::function<void(int64_t)>* task;
    int64_t num_tasks;
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t num_taken = 0;  // Guarded by mutex, as below.
    int64_t num_done = 0;
  };

  static void Work(Run* run) {
    std::unique_lock<std::mutex> lock(run->mutex);
    while (run->num_taken < run->num_tasks) {
      const int64_t i = run->num_taken++;
      lock.unlock();
      (*run->task)(i);
      lock.lock();
      if (++run->num_done == run->num_tasks) run->all_done.notify_all();
    }
  }

  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_or_end_.wait(lock, [this] { return is_closing_ || !runs_.empty(); });
      if (is_closing_) return;
      const std::shared_ptr<Run> run = runs_.front();
      runs_.pop_front();
      lock.unlock();
      Work(run.get());
      lock.lock();
    }
  }

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable work_or_end_;
  // Guarded by mutex_:
  std::deque<std::shared_ptr<Run>> runs_;  // Each once per helper.
  bool is_closing_ = false;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_THREAD_EXECUTOR_H_
