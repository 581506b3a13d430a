// IoPool: threads that wait for the disk, so that many reads are under way at
// once. A disk gives its full rate only to a deep queue of requests.

#ifndef TFCTR_OPS_CC_STORE_IO_POOL_H_
#define TFCTR_OPS_CC_STORE_IO_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tfctr {

class IoPool {
 public:
  explicit IoPool(int num_threads);
  // All work must have been done.
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  // Runs task(0) ... task(num_tasks - 1), each once, and returns when all are
  // done. Tasks must not throw. May be called concurrently.
  void ParallelFor(int64_t num_tasks, const std::function<void(int64_t)>& task);

  // The pool of this process, made at its first use and never destroyed.
  static IoPool* Shared();

 private:
  struct Run;

  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Run>> runs_;  // With tasks nobody has taken.
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_IO_POOL_H_
