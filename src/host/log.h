// Log lines: MKERNEL_DEBUG sets the level (NONE, WARN, INFO, TRACE), MKERNEL_DEBUG_SUBSYS the parts (comma list of the
// subsystems below, ^ in front inverts, ALL), MKERNEL_DEBUG_FILE the file (%h host, %p pid); default standard error.
// One write() per line, so lines of several processes do not mix.
#pragma once

namespace mk {

enum class LogLevel : int { none = 0, warn = 1, info = 2, trace = 3 };
enum class Subsys : unsigned { init = 1, bootstrap = 2, heap = 4, proxy = 8, net = 16, launch = 32, param = 64 };

bool logEnabled(LogLevel level, Subsys subsys);
[[gnu::format(printf, 5, 6)]] void logLine(LogLevel level, Subsys subsys, const char* file, int line, const char* fmt,
                                           ...);
// Names this thread's rank in its log lines; -1: none.
void logSetRank(int rank);

}  // namespace mk

#define MK_LOG_(level, subsys, ...)                                                \
  do {                                                                             \
    if (::mk::logEnabled(level, ::mk::Subsys::subsys))                             \
      ::mk::logLine(level, ::mk::Subsys::subsys, __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)
#define MK_WARN(subsys, ...) MK_LOG_(::mk::LogLevel::warn, subsys, __VA_ARGS__)
#define MK_INFO(subsys, ...) MK_LOG_(::mk::LogLevel::info, subsys, __VA_ARGS__)
#define MK_TRACE(subsys, ...) MK_LOG_(::mk::LogLevel::trace, subsys, __VA_ARGS__)
