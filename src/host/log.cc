// Writes the library's log.  Settings are read once, from the parameters; a line is put together on the stack and written
// by one write(), so logging neither allocates nor throws once it is set up, and may be used while memory is short.
#include "host/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "host/error.h"
#include "host/log_settings.h"
#include "host/params.h"

namespace mk {
namespace {

struct SubsysName {
  Subsys subsys;
  const char* name;
};
constexpr SubsysName subsysNames[] = {
    {Subsys::init, "INIT"}, {Subsys::bootstrap, "BOOTSTRAP"}, {Subsys::heap, "HEAP"},   {Subsys::proxy, "PROXY"},
    {Subsys::net, "NET"},   {Subsys::launch, "LAUNCH"},       {Subsys::param, "PARAM"},
};
constexpr const char* levelNames[] = {"NONE", "WARN", "INFO", "TRACE"};

constexpr size_t maxLine = 4096;  // PIPE_BUF: longer writes to a pipe may be interleaved with those of others

thread_local int threadRank = -1;

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string hostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "?";
  name[std::strcspn(name, ".")] = '\0';
  return name;
}

struct Log {
  LogSettings settings;
  std::string host = hostName();
  int fd = STDERR_FILENO;
};

// Appends to line[*length], leaving room for the newline.
[[gnu::format(printf, 3, 0)]] void appendList(char* line, size_t* length, const char* fmt, va_list args) {
  const size_t room = maxLine - 1 - *length;
  const int wanted = std::vsnprintf(line + *length, room, fmt, args);
  if (wanted > 0) *length += std::min(static_cast<size_t>(wanted), room - 1);
}

[[gnu::format(printf, 3, 4)]] void append(char* line, size_t* length, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  appendList(line, length, fmt, args);
  va_end(args);
}

// The last two components of a path: "host/log.cc".
const char* shortPath(const char* path) {
  const char* end = path + std::strlen(path);
  int slashes = 0;
  for (const char* p = end; p != path; --p)
    if (p[-1] == '/' && ++slashes == 2) return p;
  return path;
}

[[gnu::format(printf, 6, 0)]] void writeLine(const Log& log, LogLevel level, const char* part, const char* file,
                                             int lineNumber, const char* fmt, va_list args) {
  const int savedErrno = errno;
  char line[maxLine];
  size_t length = 0;
  append(line, &length, "%s:%d:%d ", log.host.c_str(), static_cast<int>(getpid()), static_cast<int>(gettid()));
  if (threadRank >= 0) append(line, &length, "[rank %d] ", threadRank);
  append(line, &length, "MKERNEL %s %s %s:%d ", levelNames[static_cast<int>(level)], part, shortPath(file), lineNumber);
  appendList(line, &length, fmt, args);
  // What comes from outside (a stray connection's bytes, a plugin's words) must not break the line or drive a terminal.
  std::replace_if(
      line, line + length, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  line[length++] = '\n';
  ssize_t written = 0;
  do written = write(log.fd, line, length);
  while (written < 0 && errno == EINTR);
  errno = savedErrno;  // and if the log cannot be written there is nowhere to say so
}

[[gnu::format(printf, 2, 3)]] void writeOwnWarning(const Log& log, const char* fmt, ...) {
  if (log.settings.level < LogLevel::warn) return;
  va_list args;
  va_start(args, fmt);
  writeLine(log, LogLevel::warn, "PARAM", __FILE__, __LINE__, fmt, args);
  va_end(args);
}

Log* openLog() {
  const int savedErrno = errno;
  const Params& p = params();
  auto* log = new Log;
  std::vector<std::string> warnings;
  log->settings = parseLogSettings(p.debug, p.debugSubsys, &warnings);
  if (!p.debugFile.empty()) {
    const std::string path = expandLogPath(p.debugFile, log->host, static_cast<int>(getpid()));
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
    if (fd >= 0)
      log->fd = fd;
    else
      warnings.push_back(format("MKERNEL_DEBUG_FILE: cannot open \"%s\" (%s); the log goes to standard error",
                                path.c_str(), std::strerror(errno)));
  }
  for (const std::string& text : warnings) writeOwnWarning(*log, "%s", text.c_str());
  errno = savedErrno;
  return log;
}

// Lives as long as the process: threads of the library may log while static objects are being destroyed.
const Log& theLog() {
  params();  // first, because reading the parameters may log, and initialising `log` must not come back here
  static const Log* const log = openLog();
  return *log;
}

}  // namespace

LogSettings parseLogSettings(const std::string& level, const std::string& subsystems,
                             std::vector<std::string>* warnings) {
  LogSettings settings;
  const auto* found = std::find(std::begin(levelNames), std::end(levelNames), upper(level));
  if (found != std::end(levelNames))
    settings.level = static_cast<LogLevel>(found - std::begin(levelNames));
  else
    warnings->push_back(
        format("MKERNEL_DEBUG: \"%s\" is not a level; legal are NONE, WARN, INFO, TRACE; WARN stands", level.c_str()));

  std::string list = upper(subsystems);
  const bool invert = !list.empty() && list[0] == '^';
  if (invert) list.erase(0, 1);
  unsigned mask = 0;
  bool anyKnown = false;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    if (name == "ALL") {
      mask = ~0u;
      anyKnown = true;
      continue;
    }
    const auto* part = std::find_if(std::begin(subsysNames), std::end(subsysNames),
                                    [&](const SubsysName& s) { return name == s.name; });
    if (part == std::end(subsysNames)) {
      warnings->push_back(
          format("MKERNEL_DEBUG_SUBSYS: \"%s\" is not a subsystem and is ignored; legal are INIT, BOOTSTRAP, HEAP, "
                 "PROXY, NET, LAUNCH, PARAM, ALL",
                 name.c_str()));
      continue;
    }
    mask |= static_cast<unsigned>(part->subsys);
    anyKnown = true;
  }
  // A list without one known name must not silence the log.
  if (anyKnown) settings.subsystems = invert ? ~mask : mask;
  return settings;
}

std::string expandLogPath(const std::string& pattern, const std::string& host, int pid) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'h')
      path += host;
    else if (next == 'p')
      path += std::to_string(pid);
    else if (next == '%')
      path += '%';
    else {
      path += pattern[i];
      continue;
    }
    ++i;
  }
  return path;
}

bool logEnabled(LogLevel level, Subsys subsys) {
  const LogSettings& settings = theLog().settings;
  return level <= settings.level && (settings.subsystems & static_cast<unsigned>(subsys)) != 0;
}

void logLine(LogLevel level, Subsys subsys, const char* file, int line, const char* fmt, ...) {
  const char* part = "?";
  for (const SubsysName& s : subsysNames)
    if (s.subsys == subsys) part = s.name;
  va_list args;
  va_start(args, fmt);
  writeLine(theLog(), level, part, file, line, fmt, args);
  va_end(args);
}

void logSetRank(int rank) { threadRank = rank; }

}  // namespace mk
