// Formatting and throwing of mk::Error; called by everything in src/host, src/emu and src/api.
#include "host/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mk {
namespace {

[[gnu::format(printf, 1, 0)]] std::string formatList(const char* fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, fmt, again);
  va_end(again);
  if (length < 0) return fmt;  // an encoding error: better the bare pattern than no text
  std::string text(static_cast<size_t>(length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, fmt, args);
  return text;
}

}  // namespace

std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = formatList(fmt, args);
  va_end(args);
  return text;
}

void fail(mkResult_t code, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = formatList(fmt, args);
  va_end(args);
  throw Error(code, text);
}

void failErrno(int err, const std::string& text) {
  char buffer[128];
  // The GNU variant: returns the text, in `buffer` or not.  strerror() is not thread-safe everywhere.
  throw Error(mkErrorSystem, text + ": " + strerror_r(err, buffer, sizeof(buffer)));
}

}  // namespace mk
