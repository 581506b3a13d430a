#include "tfctr_ops/cc/store/io_pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tfctr_ops/cc/store/background_thread.h"

namespace tfctr {
namespace {

// Meets others: Wait returns when `size` threads are in it. Hangs if there are
// never as many.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (++num_here_ == size_) changed_.notify_all();
    changed_.wait(lock, [this] { return num_here_ >= size_; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_here_ = 0;
};

TEST(EveryTaskRunsOnce) {
  IoPool pool(4);
  for (const int64_t num_tasks : {0, 1, 3, 4, 5, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
    pool.ParallelFor(num_tasks,
                     [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    for (const std::atomic<int>& n : runs) CHECK_EQ(n.load(), 1);
  }
}

TEST(WhatTasksWroteIsVisibleAfterwards) {
  IoPool pool(3);
  std::vector<int64_t> values(500, -1);  // No atomics.
  pool.ParallelFor(500, [&](int64_t i) { values[static_cast<size_t>(i)] = i; });
  for (int64_t i = 0; i < 500; ++i) CHECK_EQ(values[static_cast<size_t>(i)], i);
}

TEST(AsManyTasksAsThreadsAreUnderWayAtOnce) {
  IoPool pool(5);
  Meeting all_five(5);
  pool.ParallelFor(5, [&](int64_t) { all_five.Wait(); });
}

TEST(TasksRunOnThePoolAndNeverOnTheCaller) {
  IoPool pool(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  pool.ParallelFor(100, [&](int64_t) {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  CHECK_LE(threads.size(), size_t{2});
  CHECK_EQ(threads.count(std::this_thread::get_id()), size_t{0});
}

// A short call is not stuck behind the end of a long one.
TEST(ACallOvertakesTheLastTasksOfAnother) {
  IoPool pool(2);
  Meeting both(2);
  std::thread slow([&] { pool.ParallelFor(1, [&](int64_t) { both.Wait(); }); });
  pool.ParallelFor(20, [](int64_t) {});
  both.Wait();
  slow.join();
}

TEST(CallsOfManyThreadsAtOnceAllEnd) {
  IoPool pool(4);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&, c] {
      for (int call = 0; call < 200; ++call) {
        const int64_t num_tasks = (call * 7 + c) % 12;
        std::atomic<int64_t> own{0};
        pool.ParallelFor(num_tasks, [&](int64_t i) { own += i + 1; });
        CHECK_EQ(own.load(), num_tasks * (num_tasks + 1) / 2);
        sum += own;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  int64_t expected = 0;
  for (int64_t c = 0; c < 6; ++c) {
    for (int64_t call = 0; call < 200; ++call) {
      const int64_t n = (call * 7 + c) % 12;
      expected += n * (n + 1) / 2;
    }
  }
  CHECK_EQ(sum.load(), expected);
}

TEST(PoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    IoPool pool(1 + i % 4);
    std::atomic<int> runs{0};
    if (i % 3 != 0) pool.ParallelFor(i, [&](int64_t) { ++runs; });
    CHECK_EQ(runs.load(), i % 3 == 0 ? 0 : i);
  }
}

TEST(ThereIsOneSharedPool) {
  CHECK(IoPool::Shared() != nullptr);
  CHECK(IoPool::Shared() == IoPool::Shared());
  std::atomic<int> runs{0};
  IoPool::Shared()->ParallelFor(100, [&](int64_t) { ++runs; });
  CHECK_EQ(runs.load(), 100);
}

TEST(ABackgroundThreadDoesItsJobsInTheirOrder) {
  std::vector<int> done;
  {
    BackgroundThread thread;
    for (int i = 0; i < 100; ++i) thread.Add([&done, i] { done.push_back(i); });
    thread.Finish();
    CHECK_EQ(done.size(), size_t{100});
    for (int i = 100; i < 200; ++i) {
      thread.Add([&done, i] { done.push_back(i); });
    }
  }  // Does what is still to be done.
  CHECK_EQ(done.size(), size_t{200});
  for (int i = 0; i < 200; ++i) CHECK_EQ(done[static_cast<size_t>(i)], i);
}

TEST(FinishWaitsForJobsThatJobsAdd) {
  BackgroundThread thread;
  std::atomic<int> left{20};
  std::function<void()> job = [&] {
    if (--left > 0) thread.Add(job);
  };
  thread.Add(job);
  thread.Finish();
  CHECK_EQ(left.load(), 0);
}

TEST(FinishWithoutAJobReturnsAtOnce) {
  BackgroundThread thread;
  thread.Finish();
  thread.Finish();
}

}  // namespace
}  // namespace tfctr
