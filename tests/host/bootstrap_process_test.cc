// Ranks as processes: SIGKILL, the death of the hub, forked children; and that nothing is left behind.
#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "bootstrap_world.h"
#include "host/socket.h"
#include "support/catch_compat.h"

using test::contains;
using test::Outcome;
using test::World;

namespace {

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

double msSince(mk::TimePoint start) {
  return std::chrono::duration<double, std::milli>(mk::Clock::now() - start).count();
}

// Messages between the test and a forked rank: one packet, one string.
class Channel {
 public:
  explicit Channel(int fd = -1) : fd_(fd) {}
  void say(const std::string& text) const {
    [[maybe_unused]] const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // "" at the end or after ms.
  std::string hear(int ms = 10000) const {
    if (!mk::waitFd(fd_, POLLIN, mk::afterMs(ms))) return "";
    char buffer[8192];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    return n <= 0 ? "" : std::string(buffer, static_cast<size_t>(n));
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

mkUniqueId_t toId(const std::string& bytes) {
  mkUniqueId_t id = {};
  if (bytes.size() == sizeof(id)) std::memcpy(&id, bytes.data(), sizeof(id));
  return id;
}
std::string fromId(const mkUniqueId_t& id) { return {id.internal, sizeof(id)}; }

// Forked ranks.  Made before this process has threads.
class Processes {
 public:
  Processes(int n, const std::function<void(int rank, Channel& channel)>& body) {
    mk::stopHubs();
    for (int rank = 0; rank < n; ++rank) {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
      const pid_t pid = fork();
      if (pid == 0) {
        for (const Channel& other : channels_) close(other.fd());
        close(ends[0]);
        Channel channel(ends[1]);
        try {
          body(rank, channel);
          mk::stopHubs();  // as at exit()
        } catch (const std::exception& e) {
          channel.say(std::string("exception: ") + e.what());
          _exit(1);
        }
        _exit(0);
      }
      REQUIRE(pid > 0);
      close(ends[1]);
      channels_.emplace_back(ends[0]);
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] > 0) ::kill(pids_[i], SIGKILL);
      wait(static_cast<int>(i));
      close(channels_[i].fd());
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  Channel& operator[](int rank) { return channels_[static_cast<size_t>(rank)]; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void kill(int rank) { ::kill(pid(rank), SIGKILL); }
  // Exit status, or -signal.
  int wait(int rank) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    if (pid <= 0) return -1;
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Rank 0 makes the id, all get it and join.
  void connect() { spread((*this)[0].hear()); }
  void spread(const std::string& id) {
    REQUIRE(id.size() == sizeof(mkUniqueId_t));
    for (Channel& channel : channels_) channel.say(id);
    for (Channel& channel : channels_) REQUIRE(channel.hear() == "joined");
  }

 private:
  std::vector<Channel> channels_;
  std::vector<pid_t> pids_;
};

struct Rank {
  test::Recorder recorder;
  std::unique_ptr<mk::Bootstrap> bootstrap;
  ~Rank() { recorder.attach(nullptr); }
};

void joinAs(Rank& rank, int number, int n, Channel& channel, bool makesId) {
  if (makesId && number == 0) channel.say(fromId(test::localId()));
  const mkUniqueId_t id = toId(channel.hear());
  rank.bootstrap = mk::Bootstrap::join(id, test::identity(number, n), 10000, rank.recorder.events());
  rank.recorder.attach(rank.bootstrap.get());
  channel.say("joined");
}

// Says the verdict, then leaves when told to, and says who has not let go.
void reportAndLeave(Rank& rank, Channel& channel) {
  const auto verdict = rank.recorder.verdict(10000);
  channel.say(verdict.has_value() ? std::to_string(verdict->first) + " " + verdict->second : "none");
  channel.hear();
  const auto start = mk::Clock::now();
  const auto left = rank.bootstrap->depart(3000);
  channel.say("left " + mk::rankList(left) + (msSince(start) < 2000 ? " soon" : " late"));
}

// The sanitizers keep what was freed; the one for addresses looks for leaks itself.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool keepsFreedMemory = true;
#else
constexpr bool keepsFreedMemory = false;
#endif

int countEntries(const char* path) {
  int count = 0;
  DIR* const directory = opendir(path);
  REQUIRE(directory != nullptr);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Memory of the process that is its own, pages.
long residentPages() {
  long size = 0;
  long resident = 0;
  long shared = 0;
  FILE* const file = fopen("/proc/self/statm", "re");
  REQUIRE(file != nullptr);
  REQUIRE(fscanf(file, "%ld %ld %ld", &size, &resident, &shared) == 3);
  fclose(file);
  return resident - shared;
}

}  // namespace

TEST_CASE("SIGKILL of a rank is known to all others at once", "[bootstrap]") {
  const int victim = GENERATE(2, 0);  // 0 runs the hub
  constexpr int n = 4;
  Processes ranks(n, [](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, n, channel, true);
    reportAndLeave(rank, channel);
  });
  ranks.connect();
  const auto start = mk::Clock::now();
  ranks.kill(victim);
  std::string first;
  for (int rank = 0; rank < n; ++rank) {
    if (rank == victim) continue;
    const std::string verdict = ranks[rank].hear();
    CHECK(msSince(start) < 1000);
    if (first.empty()) first = verdict;
    CHECK(verdict == first);
  }
  INFO(first);
  CHECK(contains(first, std::to_string(mkErrorRemote) + " rank " + std::to_string(victim) + " (host "));
  CHECK(contains(first, "pid " + std::to_string(ranks.pid(victim)) + ") died"));
  for (int rank = 0; rank < n; ++rank)
    if (rank != victim) ranks[rank].say("leave");
  for (int rank = 0; rank < n; ++rank) {
    if (rank == victim) continue;
    // Without the hub nobody can acknowledge, and nobody waits for it.
    std::vector<int> others;
    for (int other = 0; other < n; ++other)
      if (other != rank && other != victim) others.push_back(other);
    CHECK(ranks[rank].hear() == "left " + (victim == 0 ? mk::rankList(others) : "") + " soon");
    CHECK(ranks.wait(rank) == 0);
  }
}

TEST_CASE("the death of a hub without ranks is known too", "[bootstrap]") {
  Processes ranks(2, [](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, 2, channel, false);
    reportAndLeave(rank, channel);
  });
  ranks.spread(fromId(test::localId()));
  mk::stopHubs();
  const std::string verdict = ranks[0].hear();
  CHECK(ranks[1].hear() == verdict);
  INFO(verdict);
  CHECK(contains(verdict, std::to_string(mkErrorRemote) + " the process that made the unique id"));
  CHECK(contains(verdict, "pid " + std::to_string(getpid())));
}

TEST_CASE("a report without a hub still becomes a verdict", "[bootstrap]") {
  Processes ranks(2, [](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, 2, channel, true);
    if (number == 0) {
      rank.bootstrap->depart(100);  // rank 1 stays
      return;
    }
    rank.recorder.sawLeaving(0);
    channel.hear();
    mk::FailureReport report;
    report.kind = mk::FailureReport::waiting;
    report.text = "waiting is no failure";
    rank.bootstrap->report(report);
    if (rank.recorder.verdict(200).has_value()) channel.say("verdict on waiting");
    report.kind = mk::FailureReport::timeout;
    report.text = "stage x";
    rank.bootstrap->report(report);
    reportAndLeave(rank, channel);
  });
  ranks.connect();
  CHECK(ranks.wait(0) == 0);
  ranks[1].say("report");
  const std::string verdict = ranks[1].hear();
  INFO(verdict);
  CHECK(contains(verdict, std::to_string(mkErrorTimeout) + " stage x"));
  CHECK(contains(verdict, "has ended"));
}

TEST_CASE("the hub's rank leaves last, unless its time is over", "[bootstrap]") {
  const bool patient = GENERATE(true, false);
  Processes ranks(3, [patient](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, 3, channel, true);
    if (number == 0) {
      const auto start = mk::Clock::now();
      rank.bootstrap->depart(patient ? 8000 : 300);
      channel.say(std::to_string(static_cast<int>(msSince(start))));
      return;
    }
    channel.hear();
    channel.say(rank.recorder.verdict(100).has_value() ? "verdict" : "no verdict");
    channel.say("left " + mk::rankList(rank.bootstrap->depart(2000)));
  });
  ranks.connect();
  if (patient) {
    sleepMs(400);
    for (int rank : {1, 2}) ranks[rank].say("leave");
    CHECK(ranks[1].hear() == "no verdict");
    CHECK(ranks[2].hear() == "no verdict");
    CHECK(ranks[1].hear() == "left ");
    CHECK(ranks[2].hear() == "left ");
    const int ms = std::stoi(ranks[0].hear());
    CHECK(ms > 350);
    CHECK(ms < 4000);
  } else {
    const int ms = std::stoi(ranks[0].hear());
    CHECK(ms > 290);
    CHECK(ms < 4000);
    CHECK(ranks.wait(0) == 0);  // the hub has ended with its process: that is no failure
    for (int rank : {1, 2}) ranks[rank].say("leave");
    CHECK(ranks[1].hear() == "no verdict");
    CHECK(ranks[2].hear() == "no verdict");
    CHECK(ranks[1].hear() == "left 2");
    CHECK(ranks[2].hear() == "left 1");
  }
}

TEST_CASE("a hub that runs out of descriptors takes ranks once it has some again", "[bootstrap]") {
  Processes ranks(1, [](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, 1, channel, false);
    rank.bootstrap->depart(2000);
  });
  test::CaptureStderr capture;
  const mkUniqueId_t id = test::localId();
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<int> fillers;
  for (int fd = dup(STDERR_FILENO); fd >= 0; fd = dup(STDERR_FILENO)) fillers.push_back(fd);
  ranks[0].say(fromId(id));
  const auto refused = [&] { return contains(capture.text(), "cannot accept a connection: Too many open files"); };
  for (const auto deadline = mk::afterMs(5000); !refused() && mk::Clock::now() < deadline;) sleepMs(10);
  for (const int fd : fillers) close(fd);
  CHECK(refused());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(ranks[0].hear(2000) == "joined");
  CHECK(ranks.wait(0) == 0);
}

TEST_CASE("a forked child does not keep its parent alive", "[bootstrap]") {
  const int victim = GENERATE(1, 0);  // 0 runs the hub
  constexpr int n = 3;
  Processes ranks(n, [](int number, Channel& channel) {
    Rank rank;
    joinAs(rank, number, n, channel, true);
    if (channel.hear() == "fork") {
      const pid_t child = fork();
      if (child == 0) {
        // The parent's objects are of no use here, and harmless.
        Outcome outcome = test::run([&](Outcome&) { rank.bootstrap->allgather({}, "child"); });
        bool good = outcome.code == mkErrorInvalidUsage && mk::openFds() == 0;
        rank.bootstrap->revoke();
        rank.bootstrap.reset();
        mk::stopHubs();
        channel.say(good ? "child good" : "child bad: " + outcome.text);
        sleepMs(20000);
        _exit(0);
      }
      channel.say(std::to_string(child));
    }
    reportAndLeave(rank, channel);
  });
  ranks.connect();
  for (int rank = 0; rank < n; ++rank) ranks[rank].say(rank == victim ? "fork" : "go on");
  std::string words[2] = {ranks[victim].hear(), ranks[victim].hear()};
  if (contains(words[0], "child")) std::swap(words[0], words[1]);
  const int child = std::stoi(words[0]);
  REQUIRE(child > 0);
  CHECK(words[1] == "child good");
  const int other = 2;
  sleepMs(50);
  const auto start = mk::Clock::now();
  ranks.kill(victim);
  const std::string verdict = ranks[other].hear(5000);
  CHECK(msSince(start) < 1000);
  CHECK(contains(verdict, "rank " + std::to_string(victim) + " (host "));
  CHECK(::kill(child, 0) == 0);  // it lives all the while
  ::kill(child, SIGKILL);
}

TEST_CASE("hundreds of communicators leave nothing behind", "[bootstrap]") {
  mk::stopHubs();
  { World warmUp(2); }
  mk::stopHubs();
  const int fds = countEntries("/proc/self/fd");
  const int threads = countEntries("/proc/self/task");
  long pages = 0;
  for (int i = 0; i < 300; ++i) {
    if (i == 50) pages = residentPages();
    World world(2);
    if (i % 3 == 1) world.kill(0);
    if (i % 3 == 2) world[1].revoke();
    if (i % 50 == 7)
      checkSame(test::joinAll(test::localId(), {test::identity(0, 2), test::identity(5, 2)}, 5000), mkErrorInvalidUsage,
                {});
  }
  // No more than the lingering hubs of the failed joins, which stopHubs ends; the others end by themselves.
  const auto deadline = mk::afterMs(3000);
  while (mk::reapHubs() > 6 && mk::Clock::now() < deadline) sleepMs(10);
  CHECK(mk::reapHubs() <= 6);
  mk::stopHubs();
  CHECK(countEntries("/proc/self/fd") == fds);
  CHECK(countEntries("/proc/self/task") == threads);
  CHECK(mk::openFds() == 0);
  if (!keepsFreedMemory) CHECK(residentPages() - pages < 1024);
}
