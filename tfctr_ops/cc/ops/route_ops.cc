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
    .Output("messages: int64")
    .Output("sizes: int32")
    .Output("places: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, features;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &features));
      int64_t num_owners;
      TF_RETURN_IF_ERROR(c->GetAttr("num_owners", &num_owners));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(num_owners));
      c->set_output(2, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the distinct keys of a batch, in the order of the ranks that own them.

num_features: Features lie in [0, num_features), or are -1 for an absent key.
num_owners: How many ranks share the keys.
ids: Ids of the keys.
features: Their features; they repeat over the ids.
messages: One to each owner, one behind the other: how many keys each feature
  has, then their ids, by feature.
sizes: (num_owners), of each message.
places: Of each key its place among the distinct ones; -1 for an absent key.
)doc");

REGISTER_OP("Tfctr>ReadKeyMessages")
    .Attr("num_features: int >= 1")
    .Input("messages: int64")
    .Input("sizes: int32")
    .Output("ids: int64")
    .Output("features: int32")
    .Output("num_keys: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle messages, sizes;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &messages));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &sizes));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(2, sizes);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads the keys of messages that `RouteKeys` wrote.

num_features: As many as the senders have.
messages: From all senders, one behind the other.
sizes: Of each message.
ids: Ids of all keys.
features: Their features.
num_keys: How many each sender has sent.
)doc");

}  // namespace tfctr
