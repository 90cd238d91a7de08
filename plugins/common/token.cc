// See token.h.
#include "common/token.h"

#include <sys/random.h>

#include <cerrno>

#include "common/failure.h"

namespace mk::plugin {

Token randomToken() {
  Token token;
  // Up to 256 bytes come whole; only a signal before the first one interrupts.
  ssize_t got;
  do got = getrandom(token.data(), token.size(), 0);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(token.size())) failErrno(errno, "getrandom");
  return token;
}

}  // namespace mk::plugin
