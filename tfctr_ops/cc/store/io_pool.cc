#include "tfctr_ops/cc/store/io_pool.h"

#include <algorithm>

namespace tfctr {
namespace {

// Beyond this, reads of the disks tried here came no faster.
constexpr int kSharedThreads = 32;

}  // namespace

struct IoPool::Run {
  const std::function<void(int64_t)>* task;
  int64_t num_tasks;
  int64_t next = 0;  // Guarded by the pool's mutex, as all below.
  int64_t num_done = 0;
  std::condition_variable all_done;
};

IoPool::IoPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

IoPool::~IoPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void IoPool::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stops_ || !runs_.empty(); });
    if (runs_.empty()) return;
    const std::shared_ptr<Run> run = runs_.front();
    const int64_t i = run->next++;
    if (run->next == run->num_tasks) runs_.pop_front();
    lock.unlock();
    (*run->task)(i);
    lock.lock();
    if (++run->num_done == run->num_tasks) run->all_done.notify_all();
  }
}

void IoPool::ParallelFor(int64_t num_tasks,
                         const std::function<void(int64_t)>& task) {
  if (num_tasks == 0) return;
  const auto run = std::make_shared<Run>();
  run->task = &task;
  run->num_tasks = num_tasks;
  std::unique_lock<std::mutex> lock(mutex_);
  runs_.push_back(run);
  // As many as there is work for: to wake all takes longer than a small read.
  const auto num_threads = static_cast<int64_t>(threads_.size());
  for (int64_t i = std::min(num_tasks, num_threads); i > 0; --i) {
    wake_.notify_one();
  }
  run->all_done.wait(lock, [&] { return run->num_done == num_tasks; });
}

IoPool* IoPool::Shared() {
  static IoPool* const pool = new IoPool(kSharedThreads);
  return pool;
}

}  // namespace tfctr
