#include "tfctr_ops/cc/kernels/optimizer_attributes.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tfctr {

absl::Status OptimizerFromAttributes(tensorflow::OpKernelConstruction* ctx,
                                     SparseOptimizer* optimizer) {
  std::string kind;
  float beta_1, beta_2;
  TF_RETURN_IF_ERROR(ctx->GetAttr("optimizer", &kind));
  TF_RETURN_IF_ERROR(ctx->GetAttr("beta_1", &beta_1));
  TF_RETURN_IF_ERROR(ctx->GetAttr("beta_2", &beta_2));
  TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &optimizer->epsilon));
  TF_RETURN_IF_ERROR(ctx->GetAttr("per_row_bias_correction",
                                  &optimizer->per_row_bias_correction));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weight_decay", &optimizer->weight_decay));
  TF_RETURN_IF_ERROR(
      ctx->GetAttr("initial_accumulator", &optimizer->initial_accumulator));
  TF_RETURN_IF_ERROR(
      ctx->GetAttr("learning_rate_power", &optimizer->learning_rate_power));
  TF_RETURN_IF_ERROR(ctx->GetAttr("l1", &optimizer->l1));
  TF_RETURN_IF_ERROR(ctx->GetAttr("l2", &optimizer->l2));
  TF_RETURN_IF_ERROR(ctx->GetAttr("l2_shrinkage", &optimizer->l2_shrinkage));
  TF_RETURN_IF_ERROR(ctx->GetAttr("beta", &optimizer->beta));
  TF_RETURN_IF_ERROR(ctx->GetAttr("clip_ratio", &optimizer->clip_ratio));
  TF_RETURN_IF_ERROR(ctx->GetAttr("clip_floor", &optimizer->clip_floor));
  TF_RETURN_IF_ERROR(ctx->GetAttr("l2_penalty", &optimizer->l2_penalty));
  optimizer->beta_1 = ShortestDouble(beta_1);
  optimizer->beta_2 = ShortestDouble(beta_2);
  // The op definition admits no other strings.
  if (kind == "adagrad") {
    optimizer->kind = SparseOptimizer::Kind::kAdagrad;
  } else if (kind == "rowwise_adagrad") {
    optimizer->kind = SparseOptimizer::Kind::kRowwiseAdagrad;
  } else if (kind == "adam") {
    optimizer->kind = SparseOptimizer::Kind::kAdam;
  } else if (kind == "ftrl") {
    optimizer->kind = SparseOptimizer::Kind::kFtrl;
  }
  return absl::OkStatus();
}

double ShortestDouble(float value) {
  char digits[32];
  for (int precision = 6; precision <= 9; ++precision) {
    std::snprintf(digits, sizeof(digits), "%.*g", precision, value);
    if (std::strtof(digits, nullptr) == value) break;
  }
  return std::strtod(digits, nullptr);
}

}  // namespace tfctr
