// Ops that take whole rows out of a store and put them into one.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status RowInputsShape(InferenceContext* c) {
  ShapeHandle ignored;
  for (const int i : {1, 2, 4, 5}) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &ignored));
  }
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &ignored));
  return c->WithRank(c->input(6), 0, &ignored);
}

}  // namespace

REGISTER_OP("Tfctr>EmbeddingStoreExport")
    .Attr("num_floats: int >= 1")
    .Input("store: resource")
    .Output("ids: int64")
    .Output("features: int32")
    .Output("rows: float")
    .Output("last_steps: int64")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t num_floats;
      TF_RETURN_IF_ERROR(c->GetAttr("num_floats", &num_floats));
      const auto n = c->UnknownDim();
      for (int i = 0; i < 5; ++i) c->set_output(i, c->Vector(n));
      c->set_output(2, c->Matrix(n, num_floats));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns all rows that were ever updated or written, as of one moment.

store: Handle from `EmbeddingStore`.
num_floats: Weights and slots of a row.
ids: Ids, shape `(n,)`, in no particular order.
features: Features, shape `(n,)`.
rows: Weights, then slots, shape `(n, num_floats)`.
last_steps: The last update of each row, shape `(n,)`.
counts: How many updates each row has seen, shape `(n,)`.
)doc");

// An op that takes in whole rows, and a step.
#define TFCTR_REGISTER_ROW_INPUT_OP(name) \
  REGISTER_OP(name)                       \
      .Input("store: resource")           \
      .Input("ids: int64")                \
      .Input("features: int32")           \
      .Input("rows: float")               \
      .Input("last_steps: int64")         \
      .Input("counts: int64")             \
      .Input("step: int64")               \
      .SetIsStateful()                    \
      .SetShapeFn(RowInputsShape)

TFCTR_REGISTER_ROW_INPUT_OP("Tfctr>EmbeddingStoreImport").Doc(R"doc(
Replaces all rows of a store.

store: Handle from `EmbeddingStore`.
ids: As `EmbeddingStoreExport` gave them, and so are the next four.
features: See `ids`.
rows: See `ids`.
last_steps: See `ids`.
counts: See `ids`.
step: How many updates the store had seen; scalar.
)doc");

TFCTR_REGISTER_ROW_INPUT_OP("Tfctr>EmbeddingStorePutRows").Doc(R"doc(
Sets whole rows, inserting unseen keys.

store: Handle from `EmbeddingStore`.
ids: As `EmbeddingStoreExport` gives them, and so are the next four. Of equal
  keys, the last wins.
features: See `ids`.
rows: See `ids`.
last_steps: See `ids`.
counts: See `ids`.
step: How many updates the store has then seen, unless more; scalar.
)doc");
#undef TFCTR_REGISTER_ROW_INPUT_OP

REGISTER_OP("Tfctr>EmbeddingStoreReadRows")
    .Attr("num_floats: int >= 1")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .Output("rows: float")
    .Output("last_steps: int64")
    .Output("counts: int64")
    .Output("known: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, features;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &features));
      int64_t num_floats;
      TF_RETURN_IF_ERROR(c->GetAttr("num_floats", &num_floats));
      c->set_output(0, c->Matrix(c->Dim(ids, 0), num_floats));
      for (int i = 1; i < 4; ++i) c->set_output(i, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads the whole rows of keys, and changes nothing.

store: Handle from `EmbeddingStore`.
num_floats: Weights and slots of a row.
ids: Ids, shape `(n,)`.
features: Features, shape `(p,)`, as for `EmbeddingStoreLookup`.
rows: Weights, then slots, shape `(n, num_floats)`; zeros of unknown keys.
last_steps: The last update of each row, shape `(n,)`.
counts: How many updates each row has seen, shape `(n,)`.
known: Whether the key was ever updated or written, shape `(n,)`.
)doc");

}  // namespace tfctr
