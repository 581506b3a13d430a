#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>EmbeddingStoreBeginSave")
    .Input("store: resource")
    .Input("directory: string")
    .Input("scratch: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      return c->WithRank(c->input(2), 0, &scalar);
    })
    .Doc(R"doc(
Begins a snapshot, which is of this moment. Takes no time.

store: Handle from `EmbeddingStore`.
directory: Where; it must not exist.
scratch: Directory for what snapshots share, unless the store has an
  `ssd_directory`.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreFinishSave")
    .Input("store: resource")
    .Input("metadata: string")
    .Output("report: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      c->set_output(0, c->Vector(4));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Writes the snapshot that was begun, while training goes on.

store: Handle from `EmbeddingStore`.
metadata: Kept beside the rows.
report: rows, rows_written, bytes, linked_bytes.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreRestore")
    .Attr("owner: int >= 0 = 0")
    .Attr("num_owners: int >= 1 = 1")
    .Input("store: resource")
    .Input("directories: string")
    .Input("features: int32")
    .Input("seeds: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &shape));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &shape));
      return c->WithRank(c->input(3), 1, &shape);
    })
    .Doc(R"doc(
Replaces all rows, and the step, by those of snapshots.

owner: Only keys that belong to this one of the owners are taken.
num_owners: How many there are; see `RouteKeys`.
store: Handle from `EmbeddingStore`.
directories: As given to `EmbeddingStoreSave`, of all parts of the table.
features: Feature f of the snapshots becomes features[f].
seeds: The seeds of the store's features from now on, unless empty.
)doc");

REGISTER_OP("Tfctr>SnapshotInfo")
    .Input("directory: string")
    .Output("metadata: string")
    .Output("facts: int64")
    .Output("names: string")
    .Output("segments: int64")
    .SetIsStateful()  // Reads the disk anew with each call.
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Vector(4));
      c->set_output(2, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(3, c->Matrix(InferenceContext::kUnknownDim, 3));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Tells what a snapshot holds, by its manifest.

directory: As given to `EmbeddingStoreSave`.
metadata: As given there.
facts: step, dim, num_slot_floats, rows.
names: Of the segment files and, last, of the counts of admission, if there are
  any: `(n,)`.
segments: Rows in the file, rows that belong to the snapshot, bytes: `(n, 3)`.
)doc");

REGISTER_OP("Tfctr>SnapshotDamage")
    .Input("directory: string")
    .Output("damage: string")
    .SetIsStateful()  // Reads the disk anew with each call.
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads all of a snapshot, and says what is wrong with it.

directory: As given to `EmbeddingStoreSave`.
damage: One message per damaged file, `(n,)`; none if all is well.
)doc");

REGISTER_OP("Tfctr>InspectStore")
    .Input("directory: string")
    .Output("facts: int64")
    .Output("damage: string")
    .SetIsStateful()  // Reads the disk anew with each call.
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      c->set_output(0, c->Vector(8));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads all that a store has on disk, and says what it is and what is wrong with it.

directory: Of this one store, in its `ssd_directory`.
facts: is_in_use, dim, num_slot_floats, row_bytes, segments, rows, keys, bytes.
damage: One message per damaged page, `(n,)`; none if all is well.
)doc");

}  // namespace tfctr
