// Calling a library of whole ops, as vendors have them for matrix products. Here it is fastops' CPU ops, which see the
// device's memory and leave their results in the host's.
#pragma once

#include <optional>
#include <vector>

#include "launch.h"

namespace hostmem {

inline std::optional<Tensor> on_host(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(on_host(*tensor)) : std::nullopt;
}
inline std::vector<Tensor> on_host(at::TensorList tensors) {
  std::vector<Tensor> views;
  for (const Tensor& tensor : tensors) views.push_back(on_host(tensor));
  return views;
}
inline fastops::OptionalTensors on_host(const fastops::OptionalTensors& tensors) {
  fastops::OptionalTensors views;
  for (const std::optional<Tensor> tensor : tensors) views.push_back(on_host(tensor));
  return views;
}

// In new memory of the device.
inline Tensor to_device(const Tensor& tensor, at::Device device) { return tensor.to(device); }
inline std::vector<Tensor> to_device(std::vector<Tensor> tensors, at::Device device) {
  for (Tensor& tensor : tensors) tensor = to_device(tensor, device);
  return tensors;
}

}  // namespace hostmem
