// Status: the outcome of a store operation, without TensorFlow.

#ifndef TFCTR_OPS_CC_STORE_STATUS_H_
#define TFCTR_OPS_CC_STORE_STATUS_H_

#include <string>
#include <utility>

namespace tfctr {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // The caller passed something wrong.
  kFailedPrecondition,  // The call came at the wrong time.
  kResourceExhausted,   // A limit is reached, or the disk is full.
  kUnavailable,         // The system refused: a file could not be used.
  kDataLoss,            // A file does not hold what was written to it.
};

class Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status FailedPrecondition(std::string message) {
    return Status(StatusCode::kFailedPrecondition, std::move(message));
  }
  static Status ResourceExhausted(std::string message) {
    return Status(StatusCode::kResourceExhausted, std::move(message));
  }

  static Status Unavailable(std::string message) {
    return Status(StatusCode::kUnavailable, std::move(message));
  }
  static Status DataLoss(std::string message) {
    return Status(StatusCode::kDataLoss, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_STATUS_H_
