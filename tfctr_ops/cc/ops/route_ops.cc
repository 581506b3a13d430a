#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>RouteKeys")
    .Attr("num_features: int >= 1")
    .Attr("num_owners: int >= 1")
    .Input("ids: int64")
    .Input("features: int32")
    .Output("distinct_ids: int64")
    .Output("counts: int32")
    .Output("places: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, features;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &features));
      int64_t num_features, num_owners;
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &num_features));
      TF_RETURN_IF_ERROR(c->GetAttr("num_owners", &num_owners));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Matrix(num_owners, num_features));
      c->set_output(2, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the distinct keys of a batch, in the order of the ranks that own them.

num_features: Features lie in [0, num_features), or are -1 for an absent key.
num_owners: How many ranks share the keys.
ids: Ids of the keys.
features: Their features; they repeat over the ids.
distinct_ids: The distinct keys' ids, by owner, and by feature for each owner.
counts: (num_owners, num_features), how many of them each pair has.
places: Of each key its place among the distinct ones; -1 for an absent key.
)doc");

}  // namespace tfctr
