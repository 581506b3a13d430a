// The kernels that turn bytes of data files into columns.

#include <algorithm>
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

// What both kernels are told of lines.
class TextKernel : public tf::OpKernel {
 public:
  explicit TextKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
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

  void Compute(tf::OpKernelContext* ctx) final {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* ctx) const = 0;

  DelimitedText Lines(const tf::tstring& text, Executor* executor) const {
    return {text.data(), static_cast<int64_t>(text.size()), delimiter_, kinds_,
            executor};
  }

 private:
  char delimiter_;
  std::vector<FieldKind> kinds_;
};

class ParseDelimitedOp final : public TextKernel {
 public:
  using TextKernel::TextKernel;

 private:
  absl::Status Run(tf::OpKernelContext* ctx) const override {
    const tf::Tensor& input = ctx->input(0);
    if (input.dims() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("`text` must be one string. Received: text.shape=",
                       input.shape().DebugString(), "."));
    }
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    const DelimitedText text = Lines(input.scalar<tf::tstring>()(), &executor);
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
};

class ParseDelimitedToOp final : public TextKernel {
 public:
  using TextKernel::TextKernel;

 private:
  absl::Status Run(tf::OpKernelContext* ctx) const override {
    const tf::Tensor& texts = ctx->input(0);
    const tf::Tensor& num_lines = ctx->input(1);
    const tf::Tensor& places = ctx->input(2);
    if (texts.dims() != 1 || places.dims() != 1 ||
        num_lines.shape() != texts.shape()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`texts` and `num_lines` must have shape (k,), and `places` rank 1. "
          "Received: shapes ",
          texts.shape().DebugString(), ", ", num_lines.shape().DebugString(),
          " and ", places.shape().DebugString(), "."));
    }
    int64_t num_rows = 0;
    TF_RETURN_IF_ERROR(CheckPlaces(num_lines, places, &num_rows));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    const DelimitedText none = Lines({}, &executor);
    tf::Tensor *labels, *numbers, *ids, *is_as_told;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {num_rows}, &labels));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(1, {num_rows, none.num_numbers()}, &numbers));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(2, {num_rows, none.num_ids()}, &ids));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, texts.shape(), &is_as_told));
    ParsedRows rows = {
        labels->flat<float>().data(), numbers->flat<float>().data(),
        ids->flat<int64_t>().data(), places.flat<int64_t>().data()};
    for (int64_t i = 0; i < texts.dim_size(0); ++i) {
      const DelimitedText text = Lines(texts.flat<tf::tstring>()(i), &executor);
      const int64_t told = num_lines.flat<int64_t>()(i);
      is_as_told->flat<bool>()(i) =
          text.num_lines() == told && text.Parse(rows).empty();
      rows.places += told;
    }
    return absl::OkStatus();
  }

  // Rows are written where `places` says, so it must be true.
  static absl::Status CheckPlaces(const tf::Tensor& num_lines,
                                  const tf::Tensor& places, int64_t* num_rows) {
    const auto lines = num_lines.flat<int64_t>();
    const int64_t total = places.dim_size(0);
    int64_t sum = 0;
    for (int64_t i = 0; i < lines.size(); ++i) {
      if (lines(i) < 0 || lines(i) > total - sum) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`num_lines` must be the numbers of lines of the texts, ", total,
            " together, as many as `places`. Received: num_lines[", i,
            "]=", lines(i), "."));
      }
      sum += lines(i);
    }
    const auto rows = places.flat<int64_t>();
    *num_rows = std::count_if(rows.data(), rows.data() + total,
                              [](int64_t row) { return row >= 0; });
    std::vector<bool> is_taken(*num_rows);
    for (int64_t line = 0; line < total; ++line) {
      const int64_t row = rows(line);
      if (row < 0) continue;
      if (line >= sum || row >= *num_rows || is_taken[row]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`places` must give each of ", *num_rows, " rows to one of ", sum,
            " lines. Received: places[", line, "]=", row, "."));
      }
      is_taken[row] = true;
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>ParseDelimited").Device(tf::DEVICE_CPU),
                        ParseDelimitedOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>ParseDelimitedTo").Device(tf::DEVICE_CPU),
                        ParseDelimitedToOp);

}  // namespace
}  // namespace tfctr
