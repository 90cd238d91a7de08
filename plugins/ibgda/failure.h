// How calls of the plugin fail: an exception with a result code and a text, caught in plugin.cc, which turns it into a
// return value and the text of lastError.  Used everywhere in this folder.
#pragma once

#include <stdexcept>
#include <string>

#include "mkernel.h"
#include "mkernel/transport.h"

namespace mk::ibgda {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* fmt, ...);

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

// Log lines through the host; level as in mkTransportHost_t.
void setHost(const mkTransportHost_t* host);
void logLine(int level, const char* file, int line, const std::string& text);

}  // namespace mk::ibgda

#define MK_IBGDA_WARN(...) ::mk::ibgda::logLine(1, __FILE__, __LINE__, ::mk::ibgda::format(__VA_ARGS__))
#define MK_IBGDA_INFO(...) ::mk::ibgda::logLine(2, __FILE__, __LINE__, ::mk::ibgda::format(__VA_ARGS__))
