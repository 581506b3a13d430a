#include "tests/tfctr_ops/cc/thread_executor.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"

namespace tfctr {
namespace {

using testing::ThreadExecutor;

void CheckRunsEachTaskOnce(Executor* executor, int64_t num_tasks) {
  // Not atomic: ThreadSanitizer sees if what tasks write is not made visible.
  std::vector<int> num_runs(static_cast<size_t>(num_tasks), 0);
  executor->ParallelFor(num_tasks,
                        [&](int64_t i) { ++num_runs[static_cast<size_t>(i)]; });
  CHECK_EQ(num_runs, std::vector<int>(static_cast<size_t>(num_tasks), 1));
}

TEST(EachTaskRunsOnce) {
  for (const int num_threads : {1, 2, 4}) {
    ThreadExecutor executor(num_threads);
    CHECK_EQ(executor.parallelism(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 64, 1000}) {
      CheckRunsEachTaskOnce(&executor, num_tasks);
    }
  }
}

TEST(ManyThreadsMayCallAtOnce) {
  ThreadExecutor executor(3);
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) CheckRunsEachTaskOnce(&executor, 20);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace tfctr
