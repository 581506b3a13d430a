// Executor: how the store runs the shards of a batch in parallel. The caller
// brings the threads; the store owns none.

#ifndef TFCTR_OPS_CC_STORE_EXECUTOR_H_
#define TFCTR_OPS_CC_STORE_EXECUTOR_H_

#include <cstdint>
#include <functional>

namespace tfctr {

class Executor {
 public:
  virtual ~Executor() = default;

  // How many tasks may run at the same time, the calling thread included.
  virtual int parallelism() const = 0;

  // Runs task(0) ... task(num_tasks - 1), each once, in any order and on any
  // thread. Returns when all are done; what they wrote is then visible.
  virtual void ParallelFor(int64_t num_tasks,
                           const std::function<void(int64_t)>& task) = 0;
};

// Runs everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  int parallelism() const override { return 1; }
  void ParallelFor(int64_t num_tasks,
                   const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
  }
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_EXECUTOR_H_
