// See params.h.
#include "common/params.h"

#include <cerrno>
#include <cstdlib>

#include "common/failure.h"

namespace mk::plugin {

const char* valueOf(const mkTransportHost_t& host, const char* name) {
  return host.param != nullptr ? host.param(name) : nullptr;
}

std::string readText(const mkTransportHost_t& host, const char* name, const std::string& value) {
  const char* const text = valueOf(host, name);
  return text == nullptr || *text == '\0' ? value : text;
}

long long readInteger(const mkTransportHost_t& host, const char* name, long long least, long long most,
                      long long value) {
  const char* const text = valueOf(host, name);
  if (text == nullptr) return value;
  char* end = nullptr;
  errno = 0;
  const long long read = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || read < least || read > most)
    fail(mkErrorInvalidArgument, "%s=%s: must be an integer from %lld to %lld", name, text, least, most);
  return read;
}

double readNumber(const mkTransportHost_t& host, const char* name, double most, double value) {
  const char* const text = valueOf(host, name);
  if (text == nullptr) return value;
  char* end = nullptr;
  const double read = std::strtod(text, &end);
  // The negation also refuses a NaN.
  if (end == text || *end != '\0' || !(read >= 0 && read <= most))
    fail(mkErrorInvalidArgument, "%s=%s: must be a number from 0 to %g", name, text, most);
  return read;
}

}  // namespace mk::plugin
