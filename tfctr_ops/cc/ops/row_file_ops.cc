// Ops that write the rows of a store to plain files and read them back.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("Tfctr>EmbeddingStoreWriteRowFiles")
    .Attr("values: {'float', 'int32'} = 'float'")
    .Attr("append: bool = false")
    .Input("store: resource")
    .Input("prefix: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ignored;
      return c->WithRank(c->input(1), 0, &ignored);
    })
    .Doc(R"doc(
Writes the ids and the weights of a store of one feature to two files.

`<prefix>-keys` has the ids, int64; `<prefix>-values` the weights in the same
order, without the slots. Both are flat, and little-endian.

values: With 'int32', two weights are the lower and upper 16 bits of a number.
append: Whether the rows go behind those of the files, or in place of them.
store: Handle from `EmbeddingStore`.
prefix: Scalar. Its directory is made if need be.
)doc");

REGISTER_OP("Tfctr>EmbeddingStoreReadRowFiles")
    .Attr("values: {'float', 'int32'} = 'float'")
    .Input("store: resource")
    .Input("prefixes: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ignored;
      return c->WithRank(c->input(1), 1, &ignored);
    })
    .Doc(R"doc(
Replaces all rows of a store by those of files.

values: As for `EmbeddingStoreWriteRowFiles`.
store: Handle from `EmbeddingStore`.
prefixes: Those of pairs of files, shape `(n,)`. Of equal ids, the last wins.
)doc");

}  // namespace tfctr
