#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>SampleCounts")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("samples: int32")
    .Output("counts: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, features, samples;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &features));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &samples));
      TF_RETURN_IF_ERROR(c->Merge(ids, samples, &ids));
      c->set_output(0, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Counts in how many samples the keys of a batch occur.

ids: Ids of the keys.
features: Their features; they repeat over the ids. -1 stands for an absent key.
samples: The sample that each key is in.
counts: 1 for the first of equal keys in a sample, else 0; 0 for absent keys.
)doc");

}  // namespace tfctr
