// For tests with 64 shards: ThreadSanitizer's search for deadlocks ends the
// program when one thread holds more than 64 locks, as an export then does.
// Data races are still found, and embedding_store_threads_test, with fewer
// shards, goes without this header.

#ifndef TESTS_TFCTR_OPS_CC_MANY_LOCKS_H_
#define TESTS_TFCTR_OPS_CC_MANY_LOCKS_H_

// Asked by ThreadSanitizer when the program starts; else by nobody.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }

#endif  // TESTS_TFCTR_OPS_CC_MANY_LOCKS_H_
