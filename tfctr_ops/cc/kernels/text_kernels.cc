// The kernels that turn bytes of data files into columns.

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/delimited_text.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

constexpr char kKinds[] = "-lndh";

// Moves the rows of good lines together, over those of bad ones.
template <typename T>
tf::Tensor WithoutBadLines(tf::Tensor rows, int64_t width,
                           const std::vector<BadLine>& bad_lines) {
  const int64_t num_lines = rows.dim_size(0);
  T* const data = rows.flat<T>().data();
  int64_t num_good = bad_lines.empty() ? num_lines : bad_lines[0].line;
  for (size_t i = 0; i < bad_lines.size(); ++i) {
    const int64_t begin = bad_lines[i].line + 1;
    const bool is_last = i + 1 == bad_lines.size();
    const int64_t end = is_last ? num_lines : bad_lines[i + 1].line;
    std::memmove(data + num_good * width, data + begin * width,
                 (end - begin) * width * sizeof(T));
    num_good += end - begin;
  }
  return rows.Slice(0, num_good);
}

class ParseDelimitedOp final : public tf::OpKernel {
 public:
  explicit ParseDelimitedOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string delimiter, kinds;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("delimiter", &delimiter));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kinds", &kinds));
    OP_REQUIRES(ctx, delimiter.size() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "`delimiter` must be one character. Received: '", delimiter,
                    "'.")));
    OP_REQUIRES(
        ctx,
        !kinds.empty() &&
            kinds.find_first_not_of(kKinds) == std::string::npos &&
            kinds.find('l') == kinds.rfind('l'),
        absl::InvalidArgumentError(absl::StrCat(
            "`kinds` must have a letter for each field: 'l' (at most one "
            "label), 'n', 'd', 'h' or '-'. Received: '",
            kinds, "'.")));
    delimiter_ = delimiter[0];
    for (const char kind : kinds) {
      kinds_.push_back(static_cast<FieldKind>(kind));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) const {
    const tf::Tensor& input = ctx->input(0);
    if (input.dims() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("`text` must be one string. Received: text.shape=",
                       input.shape().DebugString(), "."));
    }
    const tf::tstring& bytes = input.scalar<tf::tstring>()();
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    const DelimitedText text(bytes.data(), bytes.size(), delimiter_, kinds_,
                             &executor);
    const int64_t n = text.num_lines();
    tf::Tensor labels, numbers, ids;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_FLOAT, {n}, &labels));
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_FLOAT, {n, text.num_numbers()}, &numbers));
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_INT64, {n, text.num_ids()}, &ids));
    const std::vector<BadLine> bad_lines =
        text.Parse({labels.flat<float>().data(), numbers.flat<float>().data(),
                    ids.flat<int64_t>().data()});
    ctx->set_output(0, WithoutBadLines<float>(labels, 1, bad_lines));
    ctx->set_output(
        1, WithoutBadLines<float>(numbers, text.num_numbers(), bad_lines));
    ctx->set_output(2,
                    WithoutBadLines<int64_t>(ids, text.num_ids(), bad_lines));
    tf::Tensor* bad;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        3, {static_cast<int64_t>(bad_lines.size()), 5}, &bad));
    int64_t* out = bad->flat<int64_t>().data();
    for (const BadLine& line : bad_lines) {
      for (const int64_t value :
           {line.line, line.begin, line.end, line.column, line.num_fields}) {
        *out++ = value;
      }
    }
    return absl::OkStatus();
  }

  char delimiter_;
  std::vector<FieldKind> kinds_;
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>ParseDelimited").Device(tf::DEVICE_CPU),
                        ParseDelimitedOp);

}  // namespace
}  // namespace tfctr
