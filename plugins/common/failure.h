// How calls of a plugin fail: an exception with a result code and a text, caught in table.h, which turns it into a
// return value and the text of lastError.  Each plugin has a copy of its own.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "mkernel.h"
#include "mkernel/transport.h"

namespace mk::plugin {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* fmt, ...);

// As %llu takes it.
inline unsigned long long wide(uint64_t value) { return value; }

class Failure : public std::runtime_error {
 public:
  Failure(mkResult_t code, const std::string& text) : std::runtime_error(text), code_(code) {}
  mkResult_t code() const { return code_; }

 private:
  mkResult_t code_;
};

// Throws Failure(code, formatted text).
[[noreturn, gnu::format(printf, 2, 3)]] void fail(mkResult_t code, const char* fmt, ...);
// Throws "text: strerror(err)" as mkErrorSystem.
[[noreturn]] void failErrno(int err, const std::string& text);

// The calling thread's text for lastError.
void setLastError(const std::string& text);
const char* lastError();

// Log lines through the host; level as in mkTransportHost_t.  Before setHost and without a log function: nothing.
void setHost(const mkTransportHost_t* host);
void logLine(int level, const char* file, int line, const std::string& text);

}  // namespace mk::plugin

#define MK_PLUGIN_WARN(...) ::mk::plugin::logLine(1, __FILE__, __LINE__, ::mk::plugin::format(__VA_ARGS__))
#define MK_PLUGIN_INFO(...) ::mk::plugin::logLine(2, __FILE__, __LINE__, ::mk::plugin::format(__VA_ARGS__))
