#include "tfctr_ops/cc/store/busy_clock.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"

namespace tfctr {
namespace {

using Clock = std::chrono::steady_clock;

// Returns when the time has gone on.
void PassTime() {
  const auto start = Clock::now();
  while (Clock::now() - start < std::chrono::microseconds(100)) {
  }
}

int64_t NanosecondsSince(Clock::time_point start) {
  return std::chrono::nanoseconds(Clock::now() - start).count();
}

TEST(TheClockStandsStillWhereNobodyWorks) {
  BusyClock clock;
  PassTime();
  CHECK_EQ(clock.nanoseconds(), 0);
  auto work = std::make_unique<BusyClock::Work>(&clock);
  PassTime();
  CHECK_GE(clock.nanoseconds(), 100000);  // What is under way counts.
  work.reset();
  const int64_t done = clock.nanoseconds();
  PassTime();
  CHECK_EQ(clock.nanoseconds(), done);
}

TEST(WorkOfSeveralThreadsCountsOnce) {
  BusyClock clock;
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const BusyClock::Work work(&clock);
        PassTime();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_GE(clock.nanoseconds(), 50 * 100000);
  CHECK_LE(clock.nanoseconds(), NanosecondsSince(start));
}

}  // namespace
}  // namespace tfctr
