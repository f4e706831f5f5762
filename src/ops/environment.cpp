#include "ops/environment.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>

namespace fastops {
namespace {

using Read = void (*)();

std::vector<Read>& readers() {
  static std::vector<Read> all;
  return all;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::string printable(std::string_view value) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
    }
  }
  return text + "'";
}

std::string environment_choice(const char* variable, const std::vector<std::string>& choices) {
  const char* const set = std::getenv(variable);
  const std::string value = set ? set : "";
  const bool is_known = std::find(choices.begin(), choices.end(), value) != choices.end();
  TORCH_CHECK_VALUE(value.empty() || is_known, "fastops: ", variable, " is ", printable(value),
                    ", but here it can be one of: ", joined(choices));
  return value;
}

ReadAtImport::ReadAtImport(Read read) { readers().push_back(read); }

void read_environment() {
  for (const Read read : readers()) read();
}

}  // namespace fastops
