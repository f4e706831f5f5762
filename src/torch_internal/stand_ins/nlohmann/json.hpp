// Stands in for nlohmann/json.hpp, which torch's <ATen/functorch/Interpreter.h> includes but the torch wheels do not
// ship (2.11 to 2.15). The functions there that serialize an interpreter need these declarations to parse; fastops
// calls none of them. That header comes with every other that knows the level of a transform (DynamicLayer.h) or the
// tensors of grad (TensorWrapper.h).
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json() = default;
  template <class T>
  explicit json(const T&);
  std::string dump() const;
  static json parse(const std::string&);
  template <class T>
  T get() const;
};

}  // namespace nlohmann
