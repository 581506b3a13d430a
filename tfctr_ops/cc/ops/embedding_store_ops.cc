#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tfctr_ops/cc/ops/optimizer_attributes.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ScalarShape;
using ::tensorflow::shape_inference::ShapeHandle;

// Inputs `index` (ids) and `index` + 1 (features) are vectors.
absl::Status CheckKeys(InferenceContext* c, int index, ShapeHandle* ids) {
  ShapeHandle features;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(index), 1, ids));
  return c->WithRank(c->input(index + 1), 1, &features);
}

// (store, ids, features, expected_step) -> rows (n, dim).
absl::Status RowsShape(InferenceContext* c) {
  ShapeHandle ids, step;
  TF_RETURN_IF_ERROR(CheckKeys(c, 1, &ids));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &step));
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  c->set_output(0, c->Matrix(c->Dim(ids, 0), dim));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Tfctr>MemoryBudget")
    .Attr("limit_bytes: int")
    .Output("budget: resource")
    .SetIsStateful()  // Each call makes a new one.
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes a budget of bytes that embedding stores share.

limit_bytes: How many bytes of rows may be in memory; -1 means no limit.
budget: Scalar handle; the budget lives as long as it.
)doc");

REGISTER_OP("Tfctr>EmbeddingStore")
    .Attr("table: string")
    .Attr("dim: int >= 1")
    .Attr("feature_seeds: list(int) >= 1")
    .Attr("default_row: list(float) >= 1")
    .Attr("num_threads: int >= 0 = 0")
    .Attr("numa_node: int >= -1 = -1")
    .Attr("shard_bits: int >= 0 = 6")
    .Attr("skip_bad_gradients: bool = false")
    .Attr("eviction_policy: {'none', 'clock', 'lru', 'lfu'} = 'none'")
    .Attr("ssd_directory: string = ''")
    .Attr("ssd_limit_bytes: int = -1")
    .Attr("direct_reads: bool = false")
    .Attr("admission: {'none', 'count', 'bloom', 'probability'} = 'none'")
    .Attr("admission_min_count: int >= 1 = 1")
    .Attr("admission_expected_keys: int >= 1 = 1")
    .Attr("admission_false_positive_rate: float = 0.01")
    .Attr("admission_probability: float = 1.0")
    .Attr("expiry_every: int >= 0 = 0")
    .Attr("expiry_unused_steps: int = -1")
    .Attr("expiry_min_norm: float = 0.0")
    .Attr("expiry_max_rows: int = -1")
    .Attr("initializer: {'constant', 'uniform', 'normal', 'truncated_normal'}")
    .Attr("initializer_location: float")
    .Attr("initializer_scale: float")
    .TFCTR_OPTIMIZER_ATTRIBUTES.Input("budget: resource")
    .Output("store: resource")
    .SetIsStateful()  // Each call makes a new one.
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes an empty embedding store.

table: Name of the table, for messages.
dim: Width of the weights of a row.
feature_seeds: One per feature; with the id it determines the initial row.
default_row: What never updated keys read; `dim` values.
num_threads: How many threads work on a batch; 0 means all intra-op threads.
numa_node: From which its memory comes; -1: as the process takes all of its.
shard_bits: The store has 2^shard_bits shards.
skip_bad_gradients: Whether a step with a bad gradient is skipped, or an error.
eviction_policy: What happens when the budget is used up.
ssd_directory: Where rows go that leave memory; '' means they are gone.
ssd_limit_bytes: How many bytes of it may be used; -1 means no limit.
direct_reads: Whether it is read past the page cache of the system.
admission: Which keys get a row; the numbers are those of AdmissionOptions.
admission_min_count: How often a key was seen that gets one.
admission_expected_keys: For how many keys the Bloom filter is made.
admission_false_positive_rate: How many of others it may take for seen ones.
admission_probability: That a key gets one each time it is seen.
expiry_every: Rows are removed every so many updates; 0: when asked to.
expiry_unused_steps: Those not updated for more updates; -1: none for that.
expiry_min_norm: Those with a lesser L2 norm; 0: none for that.
expiry_max_rows: Those longest not updated, above so many; -1: none for that.
initializer: Law of the initial weights.
initializer_location: The constant, the least value or the mean.
initializer_scale: The range or the standard deviation.
optimizer: What an update does; the rest are its numbers, see SparseOptimizer.
clip_ratio: Negative: gradients are not clipped.
budget: Handle from `MemoryBudget`.
store: Scalar handle; the store lives as long as it.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreClose")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Gives the memory of a store back, though handles to it are left. Every other op
on them is an error from then on.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreLookup")
    .Attr("dim: int >= 1")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("expected_step: int64")
    .Input("counts: int32")
    .Output("rows: float")
    .Output("ticket: variant")
    .SetIsStateful()  // Inserts rows, so calls may not be merged or dropped.
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(RowsShape(c));
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &counts));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Looks up the weights of keys for training, inserting unseen keys.

store: Handle from `EmbeddingStore`.
ids: Ids, shape `(n,)`.
features: Features, shape `(p,)`, where p divides n: key i is
  `(features[i % p], ids[i])`. Feature -1 stands for an absent key, which reads
  zeros and takes no gradient.
expected_step: How many updates the caller believes the store has seen; any
  other number is an error. -1 if it has no belief.
counts: How often each key counts for admission and for clipping, shape `(n,)`;
  if empty, once.
rows: Weights, shape `(n, dim)`.
ticket: What `EmbeddingStoreUpdate` needs; scalar.
)doc");

REGISTER_OP("Tfctr>EmbeddingStorePrefetch")
    .Attr("unless_cached: bool = false")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .SetIsStateful()  // Without outputs, it would be dropped.
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids;
      return CheckKeys(c, 1, &ids);
    })
    .Doc(R"doc(
Brings rows from disk up into memory, for a lookup to come. Changes no result.

store: Handle from `EmbeddingStore`.
ids: Ids, shape `(n,)`.
features: Features, shape `(p,)`, as for `EmbeddingStoreLookup`.
unless_cached: Whether to do nothing while the page cache of the system has
  nearly all rows that are read.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreRead")
    .Attr("dim: int >= 1")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("expected_step: int64")
    .Output("rows: float")
    .SetIsStateful()  // What it reads changes, so it is not a constant.
    .SetShapeFn(RowsShape)
    .Doc(R"doc(
Reads the weights of keys; never updated keys read the default row.

store: Handle from `EmbeddingStore`.
ids: Ids, shape `(n,)`.
features: Features, shape `(p,)`, as for `EmbeddingStoreLookup`.
expected_step: As for `EmbeddingStoreLookup`.
rows: Weights, shape `(n, dim)`.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreUpdate")
    .Input("store: resource")
    .Input("ticket: variant")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Input("is_good: bool")
    .Output("step: int64")
    .SetIsStateful()  // Moves rows.
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ignored;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &ignored));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &ignored));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &ignored));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 0, &ignored));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums the gradients of equal keys and moves each distinct row once.

store: Handle from `EmbeddingStore`.
ticket: Of the lookup that gave the rows.
gradients: Gradients of these rows, shape `(n, dim)`.
learning_rate: Scalar.
is_good: If false, the gradients count as bad, whatever they are; scalar.
step: How many updates the store has seen, this one included; scalar.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreWrite")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .Input("weights: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, weights;
      TF_RETURN_IF_ERROR(CheckKeys(c, 1, &ids));
      return c->WithRank(c->input(3), 2, &weights);
    })
    .Doc(R"doc(
Sets the weights of keys, inserting unseen ones.

store: Handle from `EmbeddingStore`.
ids: Ids, shape `(n,)`. Of equal keys, the last wins.
features: Features, shape `(p,)`, as for `EmbeddingStoreLookup`.
weights: Weights, shape `(n, dim)`.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreRemove")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("features: int32")
    .Output("removed: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids;
      TF_RETURN_IF_ERROR(CheckKeys(c, 1, &ids));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Removes keys; unknown ones are ignored.

store: Handle from `EmbeddingStore`.
ids: Ids, shape `(n,)`.
features: Features, shape `(p,)`, as for `EmbeddingStoreLookup`.
removed: How many keys were there; scalar.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreExpire")
    .Input("store: resource")
    .Output("removed: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Removes rows by the attributes of the store that begin with `expiry`.

store: Handle from `EmbeddingStore`.
removed: How many; scalar.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreExportAdmission")
    .Input("store: resource")
    .Output("counts: uint8")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns what admission counted.

store: Handle from `EmbeddingStore`.
counts: Bytes, shape `(n,)`, as in the file ADMISSION of a snapshot; none without
  admission.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreImportAdmission")
    .Input("store: resource")
    .Input("counts: uint8")
    .Input("features: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ignored;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
      return c->WithRank(c->input(2), 1, &ignored);
    })
    .Doc(R"doc(
Brings back what admission counted, after an `EmbeddingStoreImport`.

store: Handle from `EmbeddingStore`.
counts: Bytes, as `EmbeddingStoreExportAdmission` gave them.
features: Feature f there becomes features[f].
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreStats")
    .Input("store: resource")
    .Output("stats: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(22));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Counts what the store holds and did.

store: Handle from `EmbeddingStore`.
stats: rows, known_rows, row_bytes, memory_bytes, evicted_rows, skipped_updates,
  step, rows_on_disk_only, disk_bytes, rows_read, rows_written, expired_rows,
  refused_keys, tracked_keys, admission_bytes, updated_rows, clipped_rows,
  found_rows, inserted_rows, promoted_rows, stalled_lookups,
  stalled_nanoseconds.
)doc");

}  // namespace tfctr
