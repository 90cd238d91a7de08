// The log: reading its settings, and the lines a process really writes.
#include "host/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "host/log_settings.h"
#include "support/catch_compat.h"
#include "support/child.h"
#include "support/temp.h"

namespace {

unsigned bit(mk::Subsys subsys) { return static_cast<unsigned>(subsys); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

}  // namespace

TEST_CASE("log settings", "[log]") {
  std::vector<std::string> warnings;
  mk::LogSettings s = mk::parseLogSettings("WARN", "ALL", &warnings);
  CHECK(s.level == mk::LogLevel::warn);
  CHECK(s.subsystems == ~0u);
  s = mk::parseLogSettings("trace", "init,Net", &warnings);
  CHECK(s.level == mk::LogLevel::trace);
  CHECK(s.subsystems == (bit(mk::Subsys::init) | bit(mk::Subsys::net)));
  s = mk::parseLogSettings("NONE", "^PROXY", &warnings);
  CHECK(s.level == mk::LogLevel::none);
  CHECK(s.subsystems == ~bit(mk::Subsys::proxy));
  CHECK(warnings.empty());

  s = mk::parseLogSettings("LOUD", "INIT,NOPE", &warnings);
  CHECK(s.level == mk::LogLevel::warn);
  CHECK(s.subsystems == bit(mk::Subsys::init));
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], "\"LOUD\""));
  CHECK(contains(warnings[0], "NONE, WARN, INFO, TRACE"));
  CHECK(contains(warnings[1], "\"NOPE\""));
  // Nothing legal in the list: the log stays as it is, rather than silent.
  CHECK(mk::parseLogSettings("WARN", "^NOPE", &warnings).subsystems == ~0u);
  CHECK(mk::parseLogSettings("WARN", "", &warnings).subsystems == ~0u);
}

TEST_CASE("log file names", "[log]") {
  CHECK(mk::expandLogPath("/tmp/a.%h.%p.log", "node7", 42) == "/tmp/a.node7.42.log");
  CHECK(mk::expandLogPath("%%p%x%", "h", 1) == "%p%x%");
}

TEST_CASE("child: log", "[.child]") {
  errno = 77;
  MK_WARN(init, "text %d", 1);
  if (errno != 77) std::printf("errno was changed\n");
  MK_INFO(net, "two\nlines\x1b[31m");
  MK_TRACE(proxy, "traced");
  mk::logSetRank(3);
  MK_INFO(launch, "%s", std::string(10000, 'y').c_str());
  std::thread([] { MK_INFO(net, "from a thread"); }).join();
}

TEST_CASE("warnings go to standard error by default", "[log]") {
  const test::Child child = test::runSelf("child: log", {});
  CHECK(child.status == 0);
  CHECK_FALSE(contains(child.out, "errno was changed"));
  REQUIRE(lines(child.err).size() == 1);
  const std::string line = lines(child.err)[0];
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string start = std::string(host).substr(0, std::string(host).find('.')) + ":" + std::to_string(child.pid) +
                            ":" + std::to_string(child.pid) + " MKERNEL WARN INIT host/log_test.cc:";
  CHECK(line.substr(0, start.size()) == start);
  CHECK(line.substr(line.size() - 7) == " text 1");
}

TEST_CASE("level and subsystem choose the lines", "[log]") {
  CHECK(test::runSelf("child: log", {"MKERNEL_DEBUG=NONE", "MKERNEL_DEBG=x"}).err.empty());

  const std::vector<std::string> all = lines(test::runSelf("child: log", {"MKERNEL_DEBUG=TRACE"}).err);
  REQUIRE(all.size() == 5);
  CHECK(contains(all[1], " MKERNEL INFO NET "));
  CHECK(contains(all[1], "two lines [31m"));
  CHECK(contains(all[2], " MKERNEL TRACE PROXY "));
  CHECK(contains(all[3], "[rank 3] MKERNEL INFO LAUNCH "));
  CHECK(all[3].size() < 4096);
  CHECK(all[3].size() > 4000);
  CHECK_FALSE(contains(all[4], "[rank"));  // another thread

  const std::vector<std::string> some =
      lines(test::runSelf("child: log", {"MKERNEL_DEBUG=INFO", "MKERNEL_DEBUG_SUBSYS=^NET"}).err);
  REQUIRE(some.size() == 2);
  CHECK(contains(some[1], "LAUNCH"));
}

TEST_CASE("the log can go to a file", "[log]") {
  const test::TempDir dir;
  test::Child child = test::runSelf("child: log", {"MKERNEL_DEBUG_FILE=" + dir.path() + "/log.%p"});
  CHECK(child.err.empty());
  CHECK(contains(dir.read("log." + std::to_string(child.pid)), "text 1\n"));

  child = test::runSelf("child: log", {"MKERNEL_DEBUG_FILE=/nonexistent/x", "MKERNEL_DEBUG=wrong"});
  REQUIRE(lines(child.err).size() == 3);
  CHECK(contains(child.err, "cannot open \"/nonexistent/x\" (No such file or directory)"));
  CHECK(contains(child.err, "\"wrong\" is not a level"));
  CHECK(contains(child.err, "text 1\n"));
}

TEST_CASE("child: log much", "[.child]") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i)
        MK_WARN(net, "<%s>", std::string(static_cast<size_t>(100 + 7 * i), static_cast<char>('a' + t)).c_str());
    });
  for (std::thread& t : threads) t.join();
}

TEST_CASE("lines of several threads do not mix", "[log]") {
  const std::vector<std::string> all = lines(test::runSelf("child: log much", {}).err);
  CHECK(all.size() == 800);
  for (const std::string& line : all) {
    const size_t begin = line.find('<');
    REQUIRE(begin != std::string::npos);
    const std::string body = line.substr(begin + 1);
    REQUIRE(body.find_first_not_of(body[0]) == body.size() - 1);
    REQUIRE(body.back() == '>');
  }
}
