// How the log's parameters are read; apart from log.h so that tests can read them without a process of their own.
#pragma once

#include <string>
#include <vector>

#include "host/log.h"

namespace mk {

struct LogSettings {
  LogLevel level = LogLevel::warn;
  unsigned subsystems = ~0u;  // bits of Subsys
};

// MKERNEL_DEBUG and MKERNEL_DEBUG_SUBSYS, upper or lower case.  What is not legal is named in *warnings and left out.
LogSettings parseLogSettings(const std::string& level, const std::string& subsystems,
                             std::vector<std::string>* warnings);

// MKERNEL_DEBUG_FILE with %h, %p and %% replaced.
std::string expandLogPath(const std::string& pattern, const std::string& host, int pid);

}  // namespace mk
