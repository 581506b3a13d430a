#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>DistinctKeys")
    .Attr("num_features: int >= 1")
    .Attr("has_counts: bool = false")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("counts: int32")
    .Output("distinct_ids: int64")
    .Output("distinct_features: int32")
    .Output("words: int64")
    .Output("distinct_counts: int32")
    .Output("places: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      bool has_counts;
      TF_RETURN_IF_ERROR(c->GetAttr("has_counts", &has_counts));
      const DimensionHandle num_distinct = c->UnknownDim();
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(num_distinct));
      c->set_output(3, c->Vector(has_counts ? num_distinct : c->MakeDim(0)));
      c->set_output(4, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the distinct keys of a batch, in the order of the locks of a table of TFRA.

num_features: How many there are; -1 stands for an absent key.
has_counts: Whether to tell how often each key counts.
ids: Ids of the keys.
features: Their features; they repeat over the ids.
counts: How often each of the keys counts; if empty, once.
distinct_ids: Ids of the distinct keys.
distinct_features: Their features.
words: What stands for them in a table of 64-bit keys.
distinct_counts: How often each counts; empty without has_counts.
places: Of each key its place among the distinct ones; -1 for an absent key.
)doc");

REGISTER_OP("Tfctr>GatherWeights")
    .Attr("dim: int >= 1")
    .Input("rows: float")
    .Input("places: int32")
    .Output("weights: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows, places;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &places));
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Matrix(c->Dim(places, 0), dim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Copies the first columns of rows to where the rows occur.

dim: How many columns.
rows: (m, at least dim).
places: (n). Which of the rows; -1 for zeros.
weights: (n, dim).
)doc");

REGISTER_OP("Tfctr>SumGradients")
    .Input("gradients: float")
    .Input("places: int32")
    .Input("num_rows: int32")
    .Output("sums: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle gradients, places, num_rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &gradients));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &places));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &num_rows));
      DimensionHandle n;
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(gradients, 0), c->Dim(places, 0), &n));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &n));
      c->set_output(0, c->Matrix(n, c->Dim(gradients, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds up gradients by the row they are of, in the order of the batch.

gradients: (n, dim).
places: (n). Of which row each is; -1 and others beyond the rows: of none.
num_rows: How many rows there are.
sums: (num_rows, dim).
)doc");

}  // namespace tfctr
