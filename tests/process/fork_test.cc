// fork() after initialisation: the child cannot use the parent's communicators, and says so; nothing that it does or leaves
// undone reaches the parent or its peers; and it can have communicators of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::expect;
using test::Note;
using test::Operands;
using test::Rank;
using test::World;

namespace {

const Case kCase{.m = 100, .n = 72, .k = 32};
// Memory of threads that a forked child does not have looks leaked there.
const std::vector<std::string> kEnvironment = {"ASAN_OPTIONS=detect_leaks=0"};

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Its exit status, or -1 after so many seconds.
int waitFor(pid_t pid, int seconds) {
  int status = 0;
  for (int i = 0; i < seconds * 500; ++i) {
    if (waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    sleepMs(2);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return -1;
}

void childCalls(Rank& rank, mkComm_t comm, mkWindow_t window, void* memory, mkStream_t stream,
                const mkGemmAllReduceArgs_t& args) {
  const auto call = [&](const char* name, const std::function<mkResult_t()>& body) {
    rank.call(std::string("child ") + name, body);
  };
  mkCommInfo_t info;
  MK_INIT(&info, MK_ID_COMM_INFO);
  mkTune_t tune;
  MK_INIT(&tune, MK_ID_TUNE);
  mkResult_t async = mkSuccess;
  mkWindow_t other = nullptr;
  size_t bytes = 0;
  call("query", [&] { return mkCommQuery(comm, &info); });
  call("async", [&] { return mkCommGetAsyncError(comm, &async); });
  call("launch", [&] { return mkGemmAllReduce(comm, &args, nullptr); });
  call("launch on a stream", [&] { return mkGemmAllReduce(comm, &args, stream); });
  call("check", [&] { return mkOpCheck(comm, MK_OP_GEMM_ALL_REDUCE, &args); });
  call("workspace", [&] { return mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes); });
  call("tune", [&] { return mkTuneQuery(comm, MK_OP_GEMM_ALL_REDUCE, &args, &tune); });
  call("reserve", [&] { return mkCommReserve(comm, 1 << 20); });
  call("register", [&] { return mkCommWindowRegister(comm, memory, 4096, &other); });
  call("deregister", [&] { return mkCommWindowDeregister(comm, window); });
  call("revoke", [&] { return mkCommRevoke(comm); });
  call("finalize", [&] { return mkCommFinalize(comm); });
  call("destroy", [&] { return mkCommDestroy(comm); });
  call("abort", [&] { return mkCommAbort(comm); });
  rank.note("child last error", mkErrorInvalidUsage, mkGetLastError(comm));
  // Not of a communicator, but of the parent all the same.
  call("synchronize", [&] { return mkCpuStreamSynchronize(stream); });
  call("stream", [&] { return mkCpuStreamDestroy(stream); });
  call("free", [&] { return mkMemFree(memory); });
}

const char* const kChildCalls[] = {"query",   "async",    "launch",   "launch on a stream", "check",
                                   "tune",    "reserve",  "register", "deregister",         "revoke",
                                   "destroy", "finalize", "abort",    "workspace",          "last error"};

}  // namespace

MK_ROLE(forks) {
  mkComm_t comm = rank.join();
  mkStream_t stream = nullptr;
  expect(mkCpuStreamCreate(&stream), "stream");
  void* memory = nullptr;
  expect(mkMemAlloc(&memory, 1 << 16), "memory");
  mkWindow_t window = nullptr;
  expect(mkCommWindowRegister(comm, memory, 1 << 16, &window), "window", comm);
  rank.operation("before", comm, rank.world(), rank.rank(), kCase);
  const Operands operands(kCase, rank.world(), rank.rank(), comm);
  const mkGemmAllReduceArgs_t args = operands.args();

  const pid_t pid = fork();
  if (pid == 0) {
    childCalls(rank, comm, window, memory, stream, args);
    // Addresses of the parent's memory are free in the child, and may be given out again.
    for (int i = 0; i < 20; ++i) {
      void* mine = nullptr;
      expect(mkMemAlloc(&mine, 1 << 16), "child's memory");
      static_cast<volatile char*>(mine)[(1 << 16) - 1] = 1;
      if (i % 2 == 0) expect(mkMemFree(mine), "child's memory");
    }
    mkComm_t own = nullptr;
    if (rank.join("children", rank.world(), rank.rank(), &own) == mkSuccess) {
      rank.operation("child op", own, rank.world(), rank.rank(), kCase);
      rank.operation("child window", own, rank.world(), rank.rank(), {.m = 64, .n = 64, .k = 64, .window = true});
      rank.call("child end", [&] { return mkCommDestroy(own); });
    }
    std::exit(0);  // with everything that runs at the end of a process
  }
  for (int i = 0; i < 5; ++i) rank.operation("meanwhile", comm, rank.world(), rank.rank(), kCase);
  rank.note("child", waitFor(pid, 20 * test::kSlow));
  rank.operation("after", comm, rank.world(), rank.rank(), kCase);
  expect(mkCommWindowDeregister(comm, window), "window", comm);
  expect(mkMemFree(memory), "memory");
  expect(mkCpuStreamDestroy(stream), "stream");
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("a forked child gets errors and has its own communicators and disturbs nobody") {
  if (test::kThreadSanitizer)
    MK_SKIP_TEST("a process that forks with threads cannot make new ones under ThreadSanitizer");
  const World world = GENERATE(World{2, 1}, World{1, 2}, World{2, 2});
  Crew crew("forks", world, {}, kEnvironment);
  const bool finished = crew.finish(40);
  INFO(world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "child", 0);
    for (const char* name : kChildCalls) {
      const Note note = crew.note(r, std::string("child ") + name);
      INFO(name << ": " << note.text);
      CHECK(note.code == mkErrorInvalidUsage);
      CHECK(note.text.find("forked child") != std::string::npos);
    }
    for (const char* name : {"synchronize", "stream", "free"})
      MK_CHECK_NOTE(crew, r, std::string("child ") + name, mkErrorInvalidArgument);
    for (const char* name : {"child op check", "child window check", "child end"}) MK_CHECK_NOTE(crew, r, name, 0);
    for (const char* name : {"before check", "meanwhile check", "after check", "destroy"})
      MK_CHECK_NOTE(crew, r, name, 0);
  }
}

// ---- The parent dies, the child lives ------------------------------------------------------------------------------

MK_ROLE(orphan) {
  const int victim = rank.number("victim");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 2000 * test::kSlow; });
  rank.operation("before", comm, rank.world(), rank.rank(), kCase);
  rank.meet("ready");
  if (rank.rank() == victim) {
    if (fork() == 0) {
      rank.note("child lives");
      for (int i = 0; i < 3000 && !rank.marked("over"); ++i) sleepMs(10);
      rank.note("child ends");
      _exit(0);
    }
    sleepMs(20);
    test::dieNow(rank);
  }
  rank.operation("op", comm, rank.world(), rank.rank(), kCase);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("a rank dies while its forked child lives") {
  const World world = GENERATE(World{2, 1}, World{1, 2}, World{2, 2});
  const int victim = GENERATE(0, 1);
  Crew crew("orphan", world, {{"victim", std::to_string(victim)}}, kEnvironment);
  bool good = true;
  for (int r = 0; r < world.ranks() && good; ++r)
    if (r != victim) good = crew.untilNoted(r, "destroy", 20);
  const bool childLives = crew.note(victim, "child lives").there && !crew.note(victim, "child ends").there;
  crew.mark("over");
  good = good && crew.finish(10) &&
         crew.until(
             10, [&] { return crew.note(victim, "child ends").there; }, "the child");
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << victim << "\n" << crew.story());
  REQUIRE(good);
  CHECK(childLives);
  const Note death = crew.note(victim, "death");
  for (int r = 0; r < world.ranks(); ++r) {
    if (r == victim) continue;
    CHECK(crew.status(r) == 0);
    const Note op = crew.note(r, "op");
    INFO(op.text);
    CHECK(op.code == mkErrorRemote);
    CHECK(test::namesRank(op.text, victim));
    CHECK(static_cast<double>(op.endNs - death.endNs) * 1e-9 < 5.0 * test::kSlow);
  }
}

// ---- Forks at any moment -------------------------------------------------------------------------------------------

MK_ROLE(storm) {
  mkComm_t comm = rank.join();
  std::atomic<bool> over{false};
  // Registers are locked and unlocked all the time; a child must never find one locked for good.
  std::thread busy([&] {
    while (!over) {
      void* memory = nullptr;
      mkStream_t stream = nullptr;
      mkCommInfo_t info;
      MK_INIT(&info, MK_ID_COMM_INFO);
      mkCommQuery(comm, &info);
      if (mkMemAlloc(&memory, 4096) == mkSuccess) mkMemFree(memory);
      if (mkCpuStreamCreate(&stream) == mkSuccess) mkCpuStreamDestroy(stream);
    }
  });
  int hung = 0, wrong = 0;
  for (int i = 0; i < rank.number("forks") && hung == 0; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      mkCommInfo_t info;
      MK_INIT(&info, MK_ID_COMM_INFO);
      void* memory = nullptr;
      mkStream_t stream = nullptr;
      bool good = mkCommQuery(comm, &info) == mkErrorInvalidUsage;
      good &= mkMemAlloc(&memory, 4096) == mkSuccess && mkMemFree(memory) == mkSuccess;
      good &= mkCpuStreamCreate(&stream) == mkSuccess && mkCpuStreamDestroy(stream) == mkSuccess;
      _exit(good ? 0 : 1);
    }
    const int status = waitFor(pid, 5 * test::kSlow);
    hung += status == -1 ? 1 : 0;
    wrong += status > 0 ? 1 : 0;
    if (i % 10 == 0) rank.operation("op", comm, rank.world(), rank.rank(), kCase);
  }
  over = true;
  busy.join();
  rank.note("hung", hung);
  rank.note("wrong", wrong);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("forks while other threads are in the library") {
  if (!test::kPlain) MK_SKIP_TEST("the sanitizers' own locks are not held across fork()");
  const World world{2, 1};
  Crew crew("storm", world, {{"forks", "150"}}, kEnvironment);
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "hung", 0);
    MK_CHECK_NOTE(crew, r, "wrong", 0);
    MK_CHECK_NOTE(crew, r, "op check", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}
