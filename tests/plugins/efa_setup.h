// How the tests of the efa transport choose a provider, or the test's libfabric.
#pragma once

#include <cstdlib>
#include <string>

#include "fabric/wire.h"
#include "world.h"

namespace test {

// "net": whatever stands for it.
inline Setup over(const std::string& provider, Params params = {}) {
  params["MKERNEL_EFA_PROVIDER"] = provider == "net" ? wireProvider() : provider;
  return {MK_TEST_EFA, params};
}

// The test's libfabric, set to do this (fabric/fabric.h), over a real provider: `provider` itself, or for efa `inner`.
inline Setup modelled(const std::string& provider, const std::string& what, const char* inner = "net",
                      Params params = {}) {
  setenv("MK_TEST_FABRIC", what.c_str(), 1);
  setenv("MK_TEST_FABRIC_INNER", *inner == '\0' || std::string(inner) == "net" ? wireProvider().c_str() : inner, 1);
  params["MKERNEL_EFA_LIBRARY"] = MK_TEST_FABRIC;
  return over(provider, params);
}

}  // namespace test
