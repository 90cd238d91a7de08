// What the CPU platform's process tests show, on GPUs: death in mid-kernel, a stalled rank, a late one, arguments that differ, an
// abort in flight.  Afterwards the device is usable, with a new communicator.  Where ranks are to be threads, these are processes all
// the same: to free what has failed waits for all kernels of a process.
#include <csignal>
#include <map>
#include <thread>

#include "gpu/crews.h"
#include "gpu/device.h"
#include "gpu/job.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::cuda;
using test::expect;
using test::newStream;
using test::Note;
using test::World;

namespace {

const Case kCase{.m = 520, .n = 392, .k = 96, .window = true};

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Large operands without contents: one launch takes about 2 ms.  Of few rows, where tiles of GEMM+ReduceScatter and
// AllGather+GEMM are turned and span shards, and clusters share those of the latter, which has few columns too: some 20 us.
struct Large {
  static constexpr int64_t kSize = 8192, kFewRows = 64, kFewCols = 1024;
  const int op;
  const bool few;
  const mkDataType_t out;  // of C, and of what travels
  void *a = nullptr, *b = nullptr, *c = nullptr;
  mkGemmAllReduceArgs_t reduce;
  mkGemmReduceScatterArgs_t scatter;
  mkAllGatherGemmArgs_t gather;
  Large(const test::Rank& rank, mkComm_t comm, mkDataType_t type = mkBfloat16)
      : op(test::operationOf(rank.option("op"))), few(rank.option("rows") == "few"), out(type) {
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    const size_t bytes = size_t{kSize} * kSize * 4;
    for (void** p : {&a, &b, &c}) {
      *p = test::deviceMemory->allocate(bytes);
      cuda(cudaMemsetAsync(*p, 0, bytes, stream), "memory");
    }
    test::synchronize(stream);
    cuda(cudaStreamDestroy(stream), "stream");
    MK_INIT(&reduce, MK_ID_GEMM_ALL_REDUCE_ARGS);
    MK_INIT(&scatter, MK_ID_GEMM_REDUCE_SCATTER_ARGS);
    MK_INIT(&gather, MK_ID_ALL_GATHER_GEMM_ARGS);
    const int64_t rows = few ? kFewRows : kSize, shard = rows / rank.ranks();
    fill(&reduce, rows, rows, kSize);
    fill(&scatter, rows, shard, kSize);
    fill(&gather, shard, rows, few ? kFewCols : kSize);
    size_t workspace = 0;
    expect(mkOpWorkspaceSize(comm, op, args(), &workspace), "workspace");
    expect(mkCommReserve(comm, workspace), "reserve", comm);
  }
  mkResult_t launch(mkComm_t comm, mkStream_t stream) const {
    if (op == MK_OP_GEMM_REDUCE_SCATTER) return mkGemmReduceScatter(comm, &scatter, stream);
    if (op == MK_OP_ALL_GATHER_GEMM) return mkAllGatherGemm(comm, &gather, stream);
    return mkGemmAllReduce(comm, &reduce, stream);
  }

 private:
  const void* args() const {
    if (op == MK_OP_GEMM_REDUCE_SCATTER) return &scatter;
    if (op == MK_OP_ALL_GATHER_GEMM) return &gather;
    return &reduce;
  }
  template <class Args>
  void fill(Args* args, int64_t rowsOfA, int64_t rowsOfC, int64_t cols) const {
    args->a = test::matrix(a, mkBfloat16, rowsOfA, kSize, kSize);
    args->b = few ? test::matrix(b, mkBfloat16, cols, kSize, kSize) : test::matrix(b, mkBfloat16, kSize, cols, cols);
    args->bLayout = few ? MK_LAYOUT_NK : MK_LAYOUT_KN;
    args->c = test::matrix(c, out, rowsOfC, cols, cols);
  }
};

Case smallOf(const test::Rank& rank) {
  Case c = kCase;
  c.op = test::operationOf(rank.option("op"));
  return c;
}

// The error that the communicator gets within so many seconds.
void noteError(test::Rank& rank, mkComm_t comm, int seconds) {
  mkResult_t async = mkSuccess;
  for (int i = 0; i < seconds * 1000 && async == mkSuccess; ++i) {
    sleepMs(1);
    expect(mkCommGetAsyncError(comm, &async), "async");
  }
  rank.note("error", async, mkGetLastError(comm));
}

// Destroys what has failed, and shows that the device still works.
void goOn(test::Rank& rank, mkComm_t comm, cudaStream_t stream) {
  rank.attempt("stream ends", [&] { test::synchronize(stream); });
  if (comm != nullptr) rank.call("ending", [&] { return mkCommDestroy(comm); });
  const std::string name = "after " + std::to_string(rank.rank());
  mkComm_t next = nullptr;
  if (rank.join(name, {1, 1}, 0, &next) != mkSuccess) return;
  rank.attempt("again", [&] { test::runCase(Case{.m = 300, .n = 264, .k = 64}, {1, 1}, 0, next, stream); });
  rank.call("destroy", [&] { return mkCommDestroy(next); });
}

void checkGoesOn(const Crew& crew, int rank) {
  CHECK(crew.status(rank) == 0);
  MK_CHECK_NOTE(crew, rank, "stream ends", 0);
  MK_CHECK_NOTE(crew, rank, "again", 0);
  MK_CHECK_NOTE(crew, rank, "destroy", mkSuccess);
}

void checkError(const Crew& crew, int rank, int code, int culprit) {
  const Note note = crew.note(rank, "error");
  INFO("rank " << rank << ": " << note.text);
  CHECK(note.code == code);
  CHECK(test::namesRank(note.text, culprit));
}

}  // namespace

// ---- Death ---------------------------------------------------------------------------------------------------------

MK_ROLE(death) {
  const bool victim = rank.rank() == rank.number("victim");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 4000; });
  cudaStream_t stream = newStream();
  test::runJob(smallOf(rank), rank.world(), rank.rank(), comm, stream);
  const Large large(rank, comm);
  rank.meet("ready");
  // Idle: the others' kernels wait for this rank to enter.  Else it dies while its own are running.
  if (victim && rank.option("how") == "idle") {
    sleepMs(50);
    test::dieNow(rank);
  }
  for (int i = 0; i < (large.few ? 100000 : 200); ++i) {
    if (large.launch(comm, stream) != mkSuccess) break;
    if (victim && i == 100) rank.note("running");
  }
  if (victim) sleepMs(20000);  // killed meanwhile
  noteError(rank, comm, 10);
  goOn(rank, comm, stream);
}

TEST_CASE("a rank dies in mid-kernel, or while the others' kernels wait for it", "[failures]") {
  const World world = GENERATE(World{1, 2}, World{2, 1}, World{1, 4}, World{2, 2}, World{4, 1});
  MK_NEED_GPUS(world.ranks());
  const std::string op = GENERATE("reduce", "scatter", "gather");
  const std::string how = GENERATE("running", "idle");
  const int victim = GENERATE(1, 0);
  const std::string rows = GENERATE("many", "few");
  if (victim == 0 && (world.ranks() > 2 || world.nodes > 1 || op != "reduce")) return;
  if (world.ranks() > 2 && how == "idle") return;
  if (rows == "few" && (world.nodes > 1 || how == "idle")) return;
  Crew crew("death", world, {{"victim", std::to_string(victim)}, {"how", how}, {"op", op}, {"rows", rows}}, {},
            Crew::Ranks::processes);
  bool good = true;
  uint64_t killed = 0;
  if (how == "running") {
    good = crew.untilNoted(victim, "running", 40);
    killed = test::clockNs();
    kill(crew.pid(victim), SIGKILL);
  }
  good = good && crew.finish(40);
  INFO(op << ", " << rows << " rows, " << world.nodes << " nodes x " << world.locals << ", rank " << victim << " dies "
          << how << "\n"
          << crew.story());
  REQUIRE(good);
  if (how == "idle") killed = crew.note(victim, "death").endNs;
  for (int survivor = 0; survivor < world.ranks(); ++survivor) {
    if (survivor == victim) continue;
    checkError(crew, survivor, mkErrorRemote, victim);
    CHECK(static_cast<double>(crew.note(survivor, "error").endNs - killed) * 1e-9 < 5);
    CHECK(crew.note(survivor, "ending").seconds() < 5);
    checkGoesOn(crew, survivor);
  }
}

// ---- A rank that stands still, is late, or differs -------------------------------------------------------------------

MK_ROLE(stalled) {
  mkComm_t comm = rank.join([](mkConfig_t& c) {
    c.timeoutMs = 2000;
    c.teardownTimeoutMs = 3000;
  });
  cudaStream_t stream = newStream();
  const Large large(rank, comm);
  rank.meet("ready");
  // A rank whose kernels have not begun when it is stopped is late, and has no deadline.
  expect(large.launch(comm, stream), "first launch", comm);
  test::synchronize(stream);
  rank.meet("entered");
  for (int i = 0; i < 400; ++i) {
    if (large.launch(comm, stream) != mkSuccess) break;
    if (i == 50) rank.note("running");
  }
  noteError(rank, comm, 15);
  goOn(rank, comm, stream);
}

TEST_CASE("a rank whose process is stopped in mid-kernel is named within the deadline", "[failures]") {
  MK_NEED_GPUS(2);
  if (test::oneGpu() != test::OneGpu::no)
    MK_SKIP_TEST(
        "needs two GPUs: ranks that take turns on one may not have entered when they are stopped, and then have no "
        "deadline");
  const std::string op = GENERATE("reduce", "scatter", "gather");
  // Within a node nothing but the GPU is needed: a stopped process stalls only the network.
  Crew crew("stalled", {2, 1}, {{"op", op}, {"rows", "many"}}, {"MKERNEL_LOOPBACK_GBPS=20"}, Crew::Ranks::processes);
  bool good = crew.untilNoted(1, "running", 40);
  kill(crew.pid(1), SIGSTOP);
  const uint64_t stopped = test::clockNs();
  good = good && crew.untilNoted(0, "error", 20);
  kill(crew.pid(1), SIGCONT);
  good = good && crew.finish(40);
  INFO(op << "\n" << crew.story());
  REQUIRE(good);
  checkError(crew, 0, mkErrorTimeout, 1);
  CHECK(static_cast<double>(crew.note(0, "error").endNs - stopped) * 1e-9 < 8);
  checkGoesOn(crew, 0);
  checkGoesOn(crew, 1);
}

MK_ROLE(late) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.timeoutMs = 1000; });
  cudaStream_t stream = newStream();
  test::runCase(kCase, rank.world(), rank.rank(), comm, stream);
  rank.attempt("late", [&] {
    for (uint64_t seed = 2; seed < 4; ++seed) {
      if (rank.rank() == 1) sleepMs(2500);
      Case c = kCase;
      c.window = false;  // nothing collective before the launch
      c.seed = seed;
      test::Operands o(c, rank.world(), rank.rank(), comm);
      const mkGemmAllReduceArgs_t args = o.args();
      expect(mkGemmAllReduce(comm, &args, stream), "launch", comm);
      test::synchronize(stream);
      mkResult_t async = mkSuccess;
      expect(mkCommGetAsyncError(comm, &async), "async");
      expect(async, "asynchronous", comm);
      o.check();
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("a rank that enters late has no deadline", "[failures]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  Crew crew("late", world, {}, {"MKERNEL_HEAP_BYTES=67108864"});
  const bool finished = crew.finish(40);
  INFO(crew.story());
  REQUIRE(finished);
  for (int r = 0; r < 2; ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "late", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

MK_ROLE(differ) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  Case c = smallOf(rank);
  c.window = false;
  test::runJob(c, rank.world(), rank.rank(), comm, stream);
  // Of AllGather+GEMM alpha is each rank's own.
  if (rank.rank() == 1 && c.op == MK_OP_ALL_GATHER_GEMM) {
    c.tune.chunkRows = 4;
  } else {
    c.alpha = rank.rank() == 1 ? 0.25f : 1;
  }
  const test::Job job(c, rank.world(), rank.rank(), comm);
  rank.call("launch", [&] { return job.launch(stream); });
  noteError(rank, comm, 15);
  goOn(rank, comm, stream);
}

TEST_CASE("arguments that differ on a known shape are shown on every rank", "[failures]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "scatter", "gather");
  Crew crew("differ", world, {{"op", op}}, {"MKERNEL_HEAP_BYTES=67108864"}, Crew::Ranks::processes);
  const bool finished = crew.finish(40);
  INFO(op << ", " << world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < 2; ++r) {
    checkError(crew, r, mkErrorInvalidUsage, 1);
    const std::string text = crew.note(r, "error").text;
    INFO(text);
    if (op == "gather") {
      CHECK(text.find("chunks of 4 rows") != std::string::npos);
      CHECK(text.find("chunks of ") != text.rfind("chunks of "));
    } else {
      CHECK(text.find("alpha=0.25") != std::string::npos);
      CHECK(text.find("alpha=1,") != std::string::npos);
    }
    checkGoesOn(crew, r);
  }
}

// What one rank calls is another operation than what the other calls.
MK_ROLE(others) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  Case c = kCase;
  c.window = false;
  c.op = test::operationOf(rank.option(rank.rank() == 0 ? "op" : "other"));
  const test::Job job(c, rank.world(), rank.rank(), comm);
  job.reserve();
  rank.call("launch", [&] { return job.launch(stream); });
  noteError(rank, comm, 15);
  goOn(rank, comm, stream);
}

TEST_CASE("two ranks that call different operations get an error that names both", "[failures]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::map<std::string, std::string> names = {
      {"reduce", "mkGemmAllReduce"}, {"scatter", "mkGemmReduceScatter"}, {"gather", "mkAllGatherGemm"}};
  const std::string op = GENERATE("reduce", "scatter", "gather");
  const std::string other = op == "reduce" ? "scatter" : op == "scatter" ? "gather" : "reduce";
  Crew crew("others", world, {{"op", op}, {"other", other}}, {"MKERNEL_HEAP_BYTES=67108864"}, Crew::Ranks::processes);
  const bool finished = crew.finish(40);
  INFO(op << ", " << other << ", " << world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < 2; ++r) {
    checkError(crew, r, mkErrorInvalidUsage, 1);
    const std::string text = crew.note(r, "error").text;
    INFO(text);
    CHECK(text.find(names.at(op)) != std::string::npos);
    CHECK(text.find(names.at(other)) != std::string::npos);
    checkGoesOn(crew, r);
  }
}

MK_ROLE(refuse) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  Case c = kCase;
  c.window = false;
  test::runCase(c, rank.world(), rank.rank(), comm, stream);
  const test::Operands o(c, rank.world(), rank.rank(), comm);
  mkGemmAllReduceArgs_t args = o.args();
  const std::vector<char> host(1 << 20);
  if (rank.rank() == 1)
    args.a.data = const_cast<char*>(host.data() + 16 - reinterpret_cast<uintptr_t>(host.data()) % 16);
  rank.call("launch", [&] { return mkGemmAllReduce(comm, &args, stream); });
  noteError(rank, comm, 15);
  goOn(rank, comm, stream);
}

TEST_CASE("arguments refused on one rank are an error on all", "[failures]") {
  MK_NEED_GPUS(2);
  Crew crew("refuse", {1, 2}, {}, {}, Crew::Ranks::processes);
  const bool finished = crew.finish(40);
  INFO(crew.story());
  REQUIRE(finished);
  MK_CHECK_NOTE(crew, 1, "launch", mkErrorInvalidArgument);
  CHECK(crew.note(1, "launch").text.find("a.data is 0x") != std::string::npos);
  for (int r = 0; r < 2; ++r) {
    checkError(crew, r, crew.note(r, "error").code, 1);
    CHECK(crew.note(r, "error").code != mkSuccess);
    checkGoesOn(crew, r);
  }
}

// ---- Abort -----------------------------------------------------------------------------------------------------------

MK_ROLE(abort) {
  const std::string how = rank.option("how");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 4000; });
  cudaStream_t stream = newStream();
  test::runJob(smallOf(rank), rank.world(), rank.rank(), comm, stream);
  const Large large(rank, comm);
  rank.meet("ready");
  // Rank 1 has launched nothing: the kernels of rank 0 wait for it.  Or both are in the middle.
  if (rank.rank() == 0 || how == "both") {
    for (int i = 0; i < 200; ++i)
      if (large.launch(comm, stream) != mkSuccess) break;
  }
  if (rank.rank() == 0) {
    sleepMs(100);
    rank.call("abort", [&] { return mkCommAbort(comm); });
    comm = nullptr;
  } else {
    noteError(rank, comm, 15);
  }
  goOn(rank, comm, stream);
}

TEST_CASE("an abort with launches in flight", "[failures]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "scatter", "gather");
  const std::string how = GENERATE("both", "one");
  Crew crew("abort", world, {{"how", how}, {"op", op}, {"rows", "many"}}, {}, Crew::Ranks::processes);
  const bool finished = crew.finish(40);
  INFO(op << ", " << world.nodes << " nodes x " << world.locals << ", " << how << "\n" << crew.story());
  REQUIRE(finished);
  MK_CHECK_NOTE(crew, 0, "abort", mkSuccess);
  CHECK(crew.note(0, "abort").seconds() < 4);
  checkError(crew, 1, mkErrorRemote, 0);
  for (int r = 0; r < 2; ++r) checkGoesOn(crew, r);
}

// At any moment of a launch some warp of a block holds something that another waits for.
MK_ROLE(aborts) {
  constexpr int kRounds = 12;
  cudaStream_t stream = newStream();
  uint64_t random = 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank.rank());
  rank.attempt("rounds", [&] {
    for (int round = 0; round < kRounds; ++round) {
      mkComm_t comm = nullptr;
      expect(rank.join("round " + std::to_string(round), rank.world(), rank.rank(), &comm), "join");
      const Large large(rank, comm, rank.option("out") == "f32" ? mkFloat32 : mkBfloat16);
      rank.meet("round " + std::to_string(round));
      for (int i = 0; i < (large.few ? 400 : 4); ++i)
        if (large.launch(comm, stream) != mkSuccess) break;
      mkResult_t async = mkSuccess;
      if (rank.rank() == 0) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::this_thread::sleep_for(std::chrono::microseconds((random >> 33) % 4000));
        expect(mkCommAbort(comm), "abort");
      } else {
        for (int i = 0; i < 10'000 && async == mkSuccess; ++i) {
          sleepMs(1);
          expect(mkCommGetAsyncError(comm, &async), "async");
        }
        if (async != mkErrorRemote) throw "round " + std::to_string(round) + ": the abort was not heard";
        static_cast<void>(mkCommDestroy(comm));
      }
      test::synchronize(stream);
      for (void* p : {large.a, large.b, large.c}) test::deviceMemory->release(p);
    }
  });
  goOn(rank, nullptr, stream);
}

TEST_CASE("aborts of a rank alone whose clusters share tiles", "[failures]") {
  MK_NEED_GPUS(1);
  Crew crew("aborts", {1, 1}, {{"op", "gather"}, {"out", "bf16"}, {"rows", "few"}}, {}, Crew::Ranks::processes);
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  MK_CHECK_NOTE(crew, 0, "rounds", 0);
  checkGoesOn(crew, 0);
}

TEST_CASE("aborts at any moment of a launch", "[failures]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "scatter", "gather");
  const std::string out = GENERATE("bf16", "f32"), rows = GENERATE("many", "few");
  if (rows == "few" && (world.nodes > 1 || out == "f32")) return;
  Crew crew("aborts", world, {{"op", op}, {"out", out}, {"rows", rows}}, {}, Crew::Ranks::processes);
  const bool finished = crew.finish(60);
  INFO(op << ", " << out << ", " << rows << " rows, " << world.nodes << " nodes x " << world.locals << "\n"
          << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < 2; ++r) {
    MK_CHECK_NOTE(crew, r, "rounds", 0);
    checkGoesOn(crew, r);
  }
}
