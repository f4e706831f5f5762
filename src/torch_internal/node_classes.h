// The classes of nodes, for Python, in which each is a class, too, that bears what name() says.
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

#include "export.h"

namespace fastops {

struct NodeClass {
  const std::type_info* type;
  std::string (*name)();
};

FASTOPS_API std::vector<NodeClass>& node_classes();

}  // namespace fastops
