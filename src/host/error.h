// Errors inside the library: exceptions that carry a result code and a text.  They never leave src/api, which turns them
// into a return value and the text of mkGetLastError.
#pragma once

#include <stdexcept>
#include <string>

#include "mkernel.h"

namespace mk {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* fmt, ...);

class Error : public std::runtime_error {
 public:
  Error(mkResult_t code, const std::string& text) : std::runtime_error(text), code_(code) {}
  mkResult_t code() const { return code_; }

 private:
  mkResult_t code_;
};

// Throws Error(code, formatted text).
[[noreturn, gnu::format(printf, 2, 3)]] void fail(mkResult_t code, const char* fmt, ...);

// "text: strerror(err)" as mkErrorSystem; call right after the failing system call (err = errno).
[[noreturn]] void failErrno(int err, const std::string& text);

}  // namespace mk
