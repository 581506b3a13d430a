#include <algorithm>
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// The outputs `labels`, `numbers` and `ids`.
absl::Status SetColumns(InferenceContext* c) {
  std::string kinds;
  TF_RETURN_IF_ERROR(c->GetAttr("kinds", &kinds));
  const auto count = [&](char kind) {
    return static_cast<int64_t>(std::count(kinds.begin(), kinds.end(), kind));
  };
  const auto rows = c->UnknownDim();
  c->set_output(0, c->Vector(rows));
  c->set_output(1, c->Matrix(rows, count('n')));
  c->set_output(2, c->Matrix(rows, count('d') + count('h')));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Tfctr>ParseDelimited")
    .Attr("delimiter: string")
    .Attr("kinds: string")
    .Input("text: string")
    .Output("labels: float")
    .Output("numbers: float")
    .Output("ids: int64")
    .Output("bad_lines: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle text;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &text));
      TF_RETURN_IF_ERROR(SetColumns(c));
      c->set_output(3, c->Matrix(InferenceContext::kUnknownDim, 5));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Parses lines of fields into columns.

delimiter: What stands between fields, one character.
kinds: A letter for each field. 'l': the label, 0 or 1. 'n': a decimal integer,
  or nothing, NaN. 'd': an id in decimal, 'h': in hexadecimal, or nothing, -1.
  '-': anything.
text: Whole lines; the last may lack its end.
labels: Of the good lines, shape `(n,)`.
numbers: Of the fields 'n', shape `(n, fields)`.
ids: Of the fields 'd' and 'h', shape `(n, fields)`.
bad_lines: Of each line that is not like that: its number from 0, where it begins
  and ends in the text, its first wrong field or -1 where their number is wrong,
  and the number of its fields.
)doc");

REGISTER_OP("Tfctr>ParseDelimitedTo")
    .Attr("delimiter: string")
    .Attr("kinds: string")
    .Input("texts: string")
    .Input("num_lines: int64")
    .Input("places: int64")
    .Output("labels: float")
    .Output("numbers: float")
    .Output("ids: int64")
    .Output("is_as_told: bool")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle texts, places;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &texts));
      TF_RETURN_IF_ERROR(c->Merge(texts, c->input(1), &texts));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &places));
      TF_RETURN_IF_ERROR(SetColumns(c));
      c->set_output(3, texts);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Parses lines of fields into rows in another order.

delimiter: As of `ParseDelimited`.
kinds: As of `ParseDelimited`.
texts: Whole lines, shape `(k,)`; the last of a text may lack its end.
num_lines: How many each text has, shape `(k,)`.
places: The row of each line, those of the first text first, or -1 for a line
  that is left out. Rows are numbered from 0, and each belongs to one line.
labels: Shape `(rows,)`.
numbers: Shape `(rows, fields)`.
ids: Shape `(rows, fields)`.
is_as_told: Shape `(k,)`. Whether a text has so many lines, and those with a row are
  as `kinds` says; otherwise these rows are unspecified.
)doc");

}  // namespace tfctr
