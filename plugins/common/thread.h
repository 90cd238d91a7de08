// Threads of a plugin: named, and deaf to signals, which are for the program's own threads.
#pragma once

#include <functional>
#include <thread>

namespace mk::plugin {

// name: at most 15 characters.  Throws Failure(mkErrorSystem).
std::thread startThread(const char* name, std::function<void()> body);

}  // namespace mk::plugin
