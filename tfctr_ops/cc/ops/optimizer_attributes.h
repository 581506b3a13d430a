// The attributes of ops that describe an update.

#ifndef TFCTR_OPS_CC_OPS_OPTIMIZER_ATTRIBUTES_H_
#define TFCTR_OPS_CC_OPS_OPTIMIZER_ATTRIBUTES_H_

// For REGISTER_OP; kernels/optimizer_attributes.h reads them.
#define TFCTR_OPTIMIZER_ATTRIBUTES                                         \
  Attr("optimizer: {'sgd', 'adagrad', 'rowwise_adagrad', 'adam', 'ftrl'}") \
      .Attr("beta_1: float")                                               \
      .Attr("beta_2: float")                                               \
      .Attr("epsilon: float")                                              \
      .Attr("per_row_bias_correction: bool")                               \
      .Attr("weight_decay: float")                                         \
      .Attr("initial_accumulator: float")                                  \
      .Attr("learning_rate_power: float")                                  \
      .Attr("l1: float")                                                   \
      .Attr("l2: float")                                                   \
      .Attr("l2_shrinkage: float")                                         \
      .Attr("beta: float")                                                 \
      .Attr("clip_ratio: float = -1.0")                                    \
      .Attr("clip_floor: float = 0.0")                                     \
      .Attr("l2_penalty: float = 0.0")

#endif  // TFCTR_OPS_CC_OPS_OPTIMIZER_ATTRIBUTES_H_
