// BackgroundThread: does jobs one after the other, beside the training.

#ifndef TFCTR_OPS_CC_STORE_BACKGROUND_THREAD_H_
#define TFCTR_OPS_CC_STORE_BACKGROUND_THREAD_H_

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tfctr {

// Makes this thread give way to others where there are too few processors.
inline void GiveWay() {
  constexpr int kNiceness = 10;
  // A refusal costs time only.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
}

class BackgroundThread {
 public:
  // `gives_way` is whether the training goes first; see GiveWay.
  explicit BackgroundThread(bool gives_way = false)
      : gives_way_(gives_way), thread_([this] { Work(); }) {}
  // Does what is still to be done.
  ~BackgroundThread() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  // Jobs must not throw.
  void Add(std::function<void()> job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  // Waits until all jobs that were added are done.
  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !works_; });
  }

 private:
  void Work() {
    if (gives_way_) GiveWay();
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      works_ = true;
      lock.unlock();
      job();
      lock.lock();
      works_ = false;
      changed_.notify_all();
    }
  }

  const bool gives_way_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // Guarded by mutex_, as all below.
  bool works_ = false;
  bool stops_ = false;
  std::thread thread_;  // Last: it uses all others.
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_BACKGROUND_THREAD_H_
