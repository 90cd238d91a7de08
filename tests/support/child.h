// Runs one hidden test case of this very program in a process and an environment of its own, for whatever a process does
// only once (reading its parameters, opening its log) or may die of.
#pragma once

#include <string>
#include <vector>

namespace test {

struct Child {
  int status = -1;  // exit status, or 128 + signal
  int pid = 0;
  std::string out, err;
};

// `testCase` is the hidden case's name.  The environment is this process's, without HOME and MKERNEL_*, and with the given
// NAME=value strings.  Killed after timeoutMs (status 128 + 9).
Child runSelf(const std::string& testCase, const std::vector<std::string>& environment, int timeoutMs = 30000);

}  // namespace test
