// Stands in for nlohmann/json.hpp, which torch's <ATen/functorch/Interpreter.h> includes but the torch wheels do not
// ship. The functions there that serialize an interpreter need these declarations to parse; fastops calls none of them.
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
