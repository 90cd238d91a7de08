// See thread.h.
#include "common/thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "common/failure.h"

namespace mk::plugin {

std::thread startThread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) failErrno(error, "cannot start a thread");
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace mk::plugin
