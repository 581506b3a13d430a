// Answers one request by the loader of TensorFlow Serving, and by nothing of
// tfctr.
//
//   serve EXPORT < request > answer
//
// Each line is a tensor: name, type (int64, int32, float32 or string), rank,
// sizes, values, all separated by spaces.

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"

namespace {

using tensorflow::Tensor;

// Reads values as `Read`, and keeps them as `T`.
template <typename T, typename Read = T>
Tensor ReadValues(const tensorflow::TensorShape& shape, std::istream& line) {
  Tensor tensor(tensorflow::DataTypeToEnum<T>::value, shape);
  auto values = tensor.flat<T>();
  for (int64_t i = 0; i < values.size(); ++i) {
    Read value;
    line >> value;
    values(i) = value;
  }
  return tensor;
}

std::pair<std::string, Tensor> ReadTensor(const std::string& text) {
  std::istringstream line(text);
  std::string name, type;
  int rank;
  line >> name >> type >> rank;
  tensorflow::TensorShape shape;
  for (int i = 0; i < rank; ++i) {
    int64_t size;
    line >> size;
    shape.AddDim(size);
  }
  if (type == "int64") {
    return {name, ReadValues<int64_t>(shape, line)};
  }
  if (type == "int32") {
    return {name, ReadValues<int32_t>(shape, line)};
  }
  if (type == "float32") {
    return {name, ReadValues<float>(shape, line)};
  }
  return {name, ReadValues<tensorflow::tstring, std::string>(shape, line)};
}

void Print(const std::string& name, const Tensor& tensor) {
  std::cout << name << " float32 " << tensor.dims();
  for (int i = 0; i < tensor.dims(); ++i) {
    std::cout << ' ' << tensor.dim_size(i);
  }
  const auto values = tensor.flat<float>();
  for (int64_t i = 0; i < values.size(); ++i) {
    std::cout << ' ' << std::setprecision(9) << values(i);
  }
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: serve EXPORT < request > answer\n";
    return 2;
  }
  tensorflow::SavedModelBundle bundle;
  auto status = tensorflow::LoadSavedModel({}, {}, argv[1], {"serve"}, &bundle);
  if (!status.ok()) {
    std::cerr << status.ToString() << '\n';
    return 1;
  }
  const auto& signature = bundle.GetSignatures().at("serving_default");
  std::vector<std::pair<std::string, Tensor>> inputs;
  for (std::string text; std::getline(std::cin, text);) {
    auto [name, tensor] = ReadTensor(text);
    inputs.emplace_back(signature.inputs().at(name).name(), tensor);
  }
  std::vector<std::string> names, tensors;
  for (const auto& [name, info] : signature.outputs()) {
    names.push_back(name);
    tensors.push_back(info.name());
  }
  std::vector<Tensor> outputs;
  status = bundle.GetSession()->Run(inputs, tensors, {}, &outputs);
  if (!status.ok()) {
    std::cerr << status.ToString() << '\n';
    return 1;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    Print(names[i], outputs[i]);
  }
  return 0;
}
