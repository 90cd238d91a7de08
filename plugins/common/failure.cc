// See failure.h.
#include "common/failure.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mk::plugin {
namespace {

std::string formatList(const char* fmt, va_list list) {
  va_list again;
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the callers have started it
  va_copy(again, list);
  const int length = std::vsnprintf(nullptr, 0, fmt, list);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, again);
  va_end(again);
  return text;
}

// Without a destructor, so that a thread that outlives the plugin has nothing of it to call.
thread_local char lastErrorText[1024];

std::atomic<void (*)(int, const char*, int, const char*)> hostLog{nullptr};

}  // namespace

std::string format(const char* fmt, ...) {
  va_list list;
  va_start(list, fmt);
  std::string text = formatList(fmt, list);
  va_end(list);
  return text;
}

void fail(mkResult_t code, const char* fmt, ...) {
  va_list list;
  va_start(list, fmt);
  const std::string text = formatList(fmt, list);
  va_end(list);
  throw Failure(code, text);
}

void failErrno(int err, const std::string& text) { throw Failure(mkErrorSystem, text + ": " + std::strerror(err)); }

void setLastError(const std::string& text) { std::snprintf(lastErrorText, sizeof(lastErrorText), "%s", text.c_str()); }

const char* lastError() { return lastErrorText; }

void setHost(const mkTransportHost_t* host) { hostLog.store(host != nullptr ? host->log : nullptr); }

void logLine(int level, const char* file, int line, const std::string& text) {
  const auto log = hostLog.load();
  if (log != nullptr) log(level, file, line, text.c_str());
}

}  // namespace mk::plugin
