#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tfctr_ops/cc/ops/optimizer_attributes.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>UpdateFusedRows")
    .TFCTR_OPTIMIZER_ATTRIBUTES.Input("rows: float")
    .Input("gradients: float")
    .Input("features: int32")
    .Input("updates: int32")
    .Input("samples: int32")
    .Input("learning_rate: float")
    .Input("step: int64")
    .Output("updated: float")
    .Output("num_clipped: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows, unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &unused));
      for (const int i : {2, 3, 4}) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      }
      for (const int i : {5, 6}) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      }
      c->set_output(0, rows);
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Updates distinct rows that lie in a table of others.

rows: (m, width). Weights, slots, and three counters that are not looked at.
gradients: (m, dim), summed over equal keys.
features: (m). The features of the keys.
updates: (m). How many updates each row has seen.
samples: (m). How many samples have each key; empty unless the update clips.
learning_rate: Of this update.
step: The number of this update, counted from 1.
updated: (m, width). The rows after it, with feature, updates and step for counters.
num_clipped: How many gradients were clipped.
)doc");

}  // namespace tfctr
