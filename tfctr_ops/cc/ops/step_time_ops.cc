#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("Tfctr>StepTimes")
    .Output("nanoseconds: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Tells what training steps of this process have taken, over all tables.

nanoseconds: In which at least one lookup for training, and at least one update,
  was under way.
)doc");

}  // namespace tfctr
