// Threads of the library: named, and deaf to signals, which are for the application's own threads.
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "host/error.h"

namespace mk {

// name: at most 15 characters.  Throws Error(mkErrorSystem).
template <typename Function>
std::thread startThread(const char* name, Function&& function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(std::forward<Function>(function));
  } catch (const std::system_error& e) {
    error = e.code().value();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) failErrno(error, "cannot start a thread");
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace mk
