#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>RouteKeys")
    .Attr("num_features: list(int) >= 1")
    .Attr("num_owners: int >= 1")
    .Attr("sends_counts: bool = false")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("counts: int32")
    .Output("messages: int64")
    .Output("sizes: int32")
    .Output("num_keys: int32")
    .Output("places: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, features, counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &features));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &counts));
      int64_t num_owners;
      TF_RETURN_IF_ERROR(c->GetAttr("num_owners", &num_owners));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(num_owners));
      c->set_output(2, c->Vector(num_owners));
      c->set_output(3, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the distinct keys of a batch, in the order of the ranks that own them.

num_features: Of each of the tables, whose features are numbered one table after
  the other. -1 stands for an absent key.
num_owners: How many ranks share the keys.
sends_counts: Whether messages tell how often each key counts.
ids: Ids of the keys.
features: Their features; they repeat over the ids.
counts: How often each of the keys counts; if empty, once.
messages: One to each owner, one behind the other: how many keys each feature
  has, then their ids, by feature, then their counts, two to a number.
sizes: (num_owners), of each message.
num_keys: (num_owners), in each message.
places: Of each key its place among the distinct ones; -1 for an absent key.
)doc");

REGISTER_OP("Tfctr>ReadKeyMessages")
    .Attr("num_features: int >= 1")
    .Attr("has_counts: bool = false")
    .Input("messages: int64")
    .Input("sizes: int32")
    .Output("ids: int64")
    .Output("features: int32")
    .Output("num_keys: int32")
    .Output("counts: int32")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle messages, sizes;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &messages));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &sizes));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(2, sizes);
      c->set_output(3, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads the keys of messages that `RouteKeys` wrote.

num_features: As many as the senders have, over all tables.
has_counts: Whether the senders have sent counts.
messages: From all senders, one behind the other.
sizes: Of each message.
ids: Ids of all keys.
features: Their features.
num_keys: How many each sender has sent.
counts: How often each of the keys counts; empty if none were sent.
)doc");

}  // namespace tfctr
