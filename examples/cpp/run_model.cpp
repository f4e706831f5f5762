// Runs a model with ops of fastops without Python: a TorchScript file (.pt), with gradients, or an AOTInductor package
// (.pt2). The program is linked with libtorch alone; loading libfastops at run time registers the ops.
//
//   run_model LIBFASTOPS MODEL INPUTS OUTPUTS
//
// LIBFASTOPS  what `python -c "import fastops; print(fastops.library_path())"` prints
// INPUTS      a list of tensors, from torch.save
// OUTPUTS     for torch.load: a tuple of the outputs; for TorchScript, whose model has one, then the gradients of the
//             sum of its squares, in the order inputs, parameters
#include <ATen/DynamicLibrary.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::vector<at::Tensor> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot open ", path);
  std::vector<at::Tensor> tensors;
  const at::IValue list = torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
  for (const at::IValue& value : list.toListRef()) tensors.push_back(value.toTensor());
  return tensors;
}

void save(const std::vector<at::Tensor>& tensors, const std::string& path) {
  const auto tuple = c10::ivalue::Tuple::create(std::vector<at::IValue>(tensors.begin(), tensors.end()));
  const std::vector<char> data = torch::jit::pickle_save(tuple);
  std::ofstream file(path, std::ios::binary);
  TORCH_CHECK(file.write(data.data(), static_cast<std::streamsize>(data.size())), "cannot write ", path);
}

std::vector<at::Tensor> run_torchscript(const std::string& path, const std::vector<at::Tensor>& inputs) {
  torch::jit::Module model = torch::jit::load(path);
  for (const at::Tensor& input : inputs) input.requires_grad_();
  const at::Tensor output = model.forward({inputs.begin(), inputs.end()}).toTensor();
  output.square().sum().backward();

  std::vector<at::Tensor> results = {output.detach()};
  for (const at::Tensor& input : inputs) results.push_back(input.grad());
  for (const at::Tensor& parameter : model.parameters()) results.push_back(parameter.grad());
  return results;
}

std::vector<at::Tensor> run_aotinductor(const std::string& path, const std::vector<at::Tensor>& inputs) {
  torch::inductor::AOTIModelPackageLoader model(path);
  return model.run(inputs);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::cerr << "usage: run_model LIBFASTOPS MODEL INPUTS OUTPUTS\n";
    return 2;
  }
  const at::DynamicLibrary fastops(argv[1], nullptr, /*leak_handle=*/true);
  const std::string model = argv[2];
  const std::vector<at::Tensor> inputs = load(argv[3]);
  save(model.ends_with(".pt2") ? run_aotinductor(model, inputs) : run_torchscript(model, inputs), argv[4]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
