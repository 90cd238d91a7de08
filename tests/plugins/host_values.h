// A host that knows the parameters which a test gives it, for the functions by which plugins read theirs.
#pragma once

#include <map>
#include <string>

#include "mkernel/transport.h"

namespace test {

inline std::map<std::string, std::string> hostValues;

inline mkTransportHost_t hostOfValues() {
  const auto param = [](const char* name) -> const char* {
    const auto found = hostValues.find(name);
    return found != hostValues.end() ? found->second.c_str() : nullptr;
  };
  return {sizeof(mkTransportHost_t), MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR, 0, nullptr, param};
}

}  // namespace test
