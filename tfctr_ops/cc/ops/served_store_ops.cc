#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tfctr {

REGISTER_OP("Tfctr>ServedEmbeddingStore")
    .Attr("container: string = ''")
    .Attr("shared_name: string")
    .Attr("table: string")
    .Attr("dim: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("default_row: list(float) >= 1")
    .Attr("ram_bytes: int >= -1 = -1")
    .Attr("ssd_directory: string = ''")
    .Output("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns the embedding store of a name, which the first call makes: empty, with
rows without optimizer values. A session that runs a SavedModel makes such calls
with every request.

container: Container of the resource.
shared_name: Its name there.
table: Name of the table, for messages.
dim: Width of the weights of a row.
num_features: Features are below it.
default_row: What keys read that have no row; `dim` values.
ram_bytes: How many bytes of rows are in memory, those with the most updates; -1
  means all of them.
ssd_directory: Where the others go; '' means the system's temporary directory.
store: Scalar handle. `DestroyResourceOp` gives the memory back.
)doc");

}  // namespace tfctr
