// BusyClock: the wall time in which at least one thread was at some work.
//
// Ops of several tables run at the same time: their times would add up to more
// than has passed.
//
// Thread safety: every method may be called concurrently.

#ifndef TFCTR_OPS_CC_STORE_BUSY_CLOCK_H_
#define TFCTR_OPS_CC_STORE_BUSY_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <mutex>

namespace tfctr {

class BusyClock {
 public:
  // Its life is the work of one thread.
  class Work {
   public:
    explicit Work(BusyClock* clock) : clock_(clock) { clock_->Begin(); }
    ~Work() { clock_->End(); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    BusyClock* const clock_;
  };

  // So far, with what is under way.
  int64_t nanoseconds() {
    std::lock_guard<std::mutex> lock(mutex_);
    return (num_working_ == 0 ? busy_ : busy_ + (Clock::now() - since_))
        .count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (num_working_++ == 0) since_ = Clock::now();
  }
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--num_working_ == 0) busy_ += Clock::now() - since_;
  }

  std::mutex mutex_;
  // Guarded by mutex_:
  int64_t num_working_ = 0;
  Clock::time_point since_;
  std::chrono::nanoseconds busy_{0};
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_BUSY_CLOCK_H_
