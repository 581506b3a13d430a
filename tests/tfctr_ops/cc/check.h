// Tests as plain programs: a test file is one program, this header its main().
//
//   TEST(TwoAndTwoMakeFour) { CHECK_EQ(2 + 2, 4); }
//
// The first check that fails prints where, what and the values, and ends the
// program. Thread safety: checks may fail on any thread.

#ifndef TESTS_TFCTR_OPS_CC_CHECK_H_
#define TESTS_TFCTR_OPS_CC_CHECK_H_

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tfctr {
namespace testing {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline bool Register(const char* name, void (*body)()) {
  Tests().push_back({name, body});
  return true;
}

// The name of the test that runs.
inline const char*& RunningTest() {
  static const char* name = "";
  return name;
}

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  out.precision(std::numeric_limits<double>::max_digits10);
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else {
    out << value;
  }
  return out.str();
}

template <typename A, typename B>
std::string Show(const std::pair<A, B>& pair) {
  return "(" + Show(pair.first) + ", " + Show(pair.second) + ")";
}

template <typename T>
std::string Show(const std::vector<T>& values) {
  constexpr size_t kMaxShown = 40;
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < kMaxShown; ++i) {
    text += (i == 0 ? "" : ", ") + Show(values[i]);
  }
  if (values.size() > kMaxShown) text += ", ...";
  return text + "] of " + Show(values.size());
}

[[noreturn]] inline void Fail(const char* file, int line,
                              const char* expression,
                              const std::string& values) {
  std::fprintf(stderr, "%s:%d: in %s: CHECK failed: %s\n  %s\n", file, line,
               RunningTest(), expression, values.c_str());
  std::fflush(nullptr);
  // Other threads may still be at work, so nothing is torn down.
  std::_Exit(1);
}

// Whether a and b differ by at most `tolerance`; false for NaN.
inline bool IsNear(double a, double b, double tolerance) {
  return a == b || std::fabs(a - b) <= tolerance;
}

}  // namespace testing
}  // namespace tfctr

#define TEST(name)                                   \
  void name();                                       \
  [[maybe_unused]] const bool is_registered_##name = \
      ::tfctr::testing::Register(#name, name);       \
  void name()

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      ::tfctr::testing::Fail(__FILE__, __LINE__, #condition, "is not true"); \
    }                                                                        \
  } while (false)

// Copies both sides: either may be part of a temporary.
#define CHECK_OPERATOR(a, operator_, b)                        \
  do {                                                         \
    const auto left_ = (a);                                    \
    const auto right_ = (b);                                   \
    if (!(left_ operator_ right_)) {                           \
      ::tfctr::testing::Fail(                                  \
          __FILE__, __LINE__, #a " " #operator_ " " #b,        \
          "left: " + ::tfctr::testing::Show(left_) +           \
              "\n  right: " + ::tfctr::testing::Show(right_)); \
    }                                                          \
  } while (false)

#define CHECK_EQ(a, b) CHECK_OPERATOR(a, ==, b)
#define CHECK_NE(a, b) CHECK_OPERATOR(a, !=, b)
#define CHECK_LT(a, b) CHECK_OPERATOR(a, <, b)
#define CHECK_LE(a, b) CHECK_OPERATOR(a, <=, b)
#define CHECK_GT(a, b) CHECK_OPERATOR(a, >, b)
#define CHECK_GE(a, b) CHECK_OPERATOR(a, >=, b)

#define CHECK_NEAR(a, b, tolerance)                                    \
  do {                                                                 \
    const double left_ = (a);                                          \
    const double right_ = (b);                                         \
    const double tolerance_ = (tolerance);                             \
    if (!::tfctr::testing::IsNear(left_, right_, tolerance_)) {        \
      ::tfctr::testing::Fail(                                          \
          __FILE__, __LINE__, #a " is near " #b,                       \
          "left: " + ::tfctr::testing::Show(left_) +                   \
              "\n  right: " + ::tfctr::testing::Show(right_) +         \
              "\n  tolerance: " + ::tfctr::testing::Show(tolerance_)); \
    }                                                                  \
  } while (false)

#define CHECK_CONTAINS(text, part)                                         \
  do {                                                                     \
    const std::string text_ = (text);                                      \
    const std::string part_ = (part);                                      \
    if (text_.find(part_) == std::string::npos) {                          \
      ::tfctr::testing::Fail(__FILE__, __LINE__, #text " contains " #part, \
                             "text: " + text_ + "\n  part: " + part_);     \
    }                                                                      \
  } while (false)

// Of a tfctr::Status.
#define CHECK_OK(status)                                           \
  do {                                                             \
    const auto status_ = (status);                                 \
    if (!status_.ok()) {                                           \
      ::tfctr::testing::Fail(__FILE__, __LINE__, #status " is ok", \
                             status_.message());                   \
    }                                                              \
  } while (false)

// Runs the tests whose names contain the argument; all without one.
int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int num_run = 0;
  for (const ::tfctr::testing::Test& test : ::tfctr::testing::Tests()) {
    if (std::string(test.name).find(wanted) == std::string::npos) continue;
    ::tfctr::testing::RunningTest() = test.name;
    test.body();
    ++num_run;
  }
  std::printf("%d tests passed.\n", num_run);
  return num_run > 0 ? 0 : 1;
}

#endif  // TESTS_TFCTR_OPS_CC_CHECK_H_
