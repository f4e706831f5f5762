// The environment variables of the library. Each is read once, where it is used; `import fastops` has all of them read,
// so that a bad value is an error there and not at some later call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "export.h"

namespace fastops {

// The value of a variable, one of `choices`; an empty one where it is unset. Any other is a ValueError.
FASTOPS_API std::string environment_choice(const char* variable, const std::vector<std::string>& choices);

// A value as an error shows it, in quotes: bytes that are not printable ASCII, and need not be text, as \xff.
FASTOPS_API std::string printable(std::string_view value);

// A static object of this kind has a function that reads a variable called by read_environment().
struct FASTOPS_API ReadAtImport {
  explicit ReadAtImport(void (*read)());
};
FASTOPS_API void read_environment();

}  // namespace fastops
